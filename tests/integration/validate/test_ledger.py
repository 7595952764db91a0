""" "Validated through X" against a ledger: every change that was lost before X is listed as an error, at any moment.

A writer records each committed change with a position behind its commit. The target loses or spoils changes at random.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

import psycopg
import pytest

from support.validate import Copy
from trueup.capture.log.slot import lsn_number

KEYS = 400
TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, note text)"
# Large values are stored elsewhere, and an update that does not touch them does not repeat them in the log.
CHANGES = (
    ("INSERT INTO t VALUES (%(id)s, %(n)s, repeat('x', %(long)s)) ON CONFLICT (id) DO UPDATE SET n = excluded.n", 5),
    ("UPDATE t SET n = %(n)s WHERE id = %(id)s", 5),
    ("DELETE FROM t WHERE id = %(id)s", 3),
    ("UPDATE t SET note = repeat('y', %(long)s) WHERE id = %(id)s", 1),
    ("UPDATE t SET id = %(other)s WHERE id = %(id)s AND NOT EXISTS (SELECT FROM t WHERE id = %(other)s)", 2),
)
LOSE = """
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() > 1 THEN RETURN OLD; END IF;
    IF random() < 0.06 THEN RETURN NULL; END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    -- A row that should not exist must not stop the subscription.
    IF TG_OP = 'INSERT' OR NEW.id <> OLD.id THEN DELETE FROM public.t WHERE id = NEW.id; END IF;
    IF random() < 0.04 THEN NEW.n = -1; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lose BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION lose();
ALTER TABLE t ENABLE ALWAYS TRIGGER lose;
"""


class Ledger(threading.Thread):
    """Writers that note the position behind the last committed change of each key."""

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.uri, self.random = uri, random.Random(seed)
        self.last: dict[int, int] = {}
        self.commits = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self.uri) as first, psycopg.connect(self.uri) as second:
                while not self.ended.is_set():
                    self._step(first, second)
                    # Shorter pauses would only cost processor time.
                    time.sleep(self.random.choice((0, 0.002, 0.02, 0.06)))
        except BaseException as error:
            self.problem = error

    def has_committed(self, commits: int) -> bool:
        return self.commits >= commits or self.problem is not None

    def _step(self, first: psycopg.Connection[Any], second: psycopg.Connection[Any]) -> None:
        # Keys of one parity per session: the transactions overlap, and never wait for each other.
        with self.lock:
            open_keys = self._change(first, 0)
            if self.random.random() < 0.3:
                self._end(second, self._change(second, 1))
            self._end(first, open_keys)

    def _change(self, session: psycopg.Connection[Any], parity: int) -> set[int]:
        """Change some keys without a commit, some of them in a subtransaction that is rolled back; return the keys."""
        changed: set[int] = set()
        # Opens the transaction; otherwise `transaction()` below would commit.
        session.execute("SELECT 1")
        for _ in range(self.random.choice((1, 1, 1, 3, 12))):
            key, other = (2 * self.random.randrange(KEYS // 2) + parity for _ in range(2))
            [statement] = self.random.choices([text for text, _ in CHANGES], [weight for _, weight in CHANGES])
            n, long = self.random.randrange(1000), self.random.choice((1, 9000))
            values = {"id": key, "other": other, "n": n, "long": long}
            try:
                with session.transaction(force_rollback=self.random.random() < 0.1) as part:
                    session.execute(statement, values)
            except psycopg.Error:
                continue
            if not part.force_rollback:
                changed |= {key, other}
        return changed

    def _end(self, session: psycopg.Connection[Any], keys: set[int]) -> None:
        if self.random.random() < 0.1:
            session.rollback()
            return
        session.commit()
        [behind] = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("0/0",)
        session.rollback()
        self.commits += 1
        self.last.update(dict.fromkeys(keys, lsn_number(behind)))


@pytest.mark.parametrize(("changes", "seed"), [("log", 2), ("changelog", 3)])
def test_every_lost_change_before_the_position_is_listed(copy: Copy, changes: str, seed: int) -> None:
    copy.both(TABLE)
    copy.replicate("t")
    copy.down.execute(LOSE)
    copy.start("public.t", changes=changes)
    ledger = Ledger(copy.up.uri, seed)
    ledger.start()
    judged = lost = 0
    try:
        for _ in range(8):
            mark = max(ledger.last.values(), default=0)
            copy.until(partial(ledger.has_committed, ledger.commits + 10))
            copy.until(partial(_has_validated, copy, mark))
            wrong, keys = _check(copy, ledger)
            judged, lost = judged + keys, lost + wrong
    finally:
        ledger.ended.set()
        ledger.join(60)
    assert ledger.problem is None
    fence = copy.fence()
    assert fence.validated
    wrong, keys = _check(copy, ledger)
    assert (fence.errors, keys) == (wrong, len(ledger.last))
    assert judged > 50
    assert lost > 5


def _has_validated(copy: Copy, position: int) -> bool:
    validated = copy.status().validated
    return validated is not None and lsn_number(validated) >= position


def _check(copy: Copy, ledger: Ledger) -> tuple[int, int]:
    """Compare the errors with the truth, for all keys that did not change after the validated position."""
    validated = copy.status().validated
    errors = {int(error.key[0] or 0) for error in copy.errors()}
    with ledger.lock:
        rows = "SELECT id, n, md5(note) FROM t"
        source, target = ({row[0]: row for row in database.execute(rows)} for database in (copy.up, copy.down))
        last = dict(ledger.last)
    judged = {key for key, position in last.items() if validated and position <= lsn_number(validated)}
    wrong = {key for key in judged if source.get(key) != target.get(key)}
    assert wrong - errors == set(), f"lost before {validated} and not listed"
    assert errors & judged - wrong == set(), f"listed before {validated} and not wrong"
    return len(wrong), len(judged)
