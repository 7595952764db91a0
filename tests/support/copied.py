"""A table of a tube and its copy, for tests of changes that no touch brings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase
from trueup.testing.processes import wait_until

TABLE = """
CREATE TABLE items (id int, day int, PRIMARY KEY (id, day));
CREATE TABLE events (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (100) PARTITION BY LIST (day);
CREATE TABLE events_2a PARTITION OF events_2 FOR VALUES IN (10, 11);
"""
PROBLEM = (
    "the copy may be incomplete (its triggers were missing, disabled or replaced): run trueup tube backfill t public."
)


def unseen(tube_db: TubeDatabase, place: str, changes: str) -> str:
    """Return statements that change rows while all triggers of a relation are disabled."""
    triggers = tube_db.run(
        f"SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = '{place}'::regclass AND NOT tgisinternal"
    )
    how = {"A": "ENABLE ALWAYS", "D": "DISABLE"}
    enabled = "".join(f"ALTER TABLE ONLY {place} {how[state]} TRIGGER {name};" for name, state in triggers)
    return f"ALTER TABLE ONLY {place} DISABLE TRIGGER ALL; {changes}; {enabled}"


def problem_of(tube_db: TubeDatabase, table: str) -> str:
    tables = {each.table: each.problem for each in tube_db.tubes()[0].tables}
    return tables[f"public.{table}"] or ""


class Copied:
    """A table of a tube and its copy."""

    def __init__(self, tube_db: TubeDatabase, table: str, path: str, capture: str = "statement") -> None:
        self.tube_db, self.table, self.path = tube_db, table, path
        tube_db.run(TABLE)
        tube_db.tube.attach(table, shard=1, capture=capture)

    def run(self) -> str:
        return "".join(self.tube_db.tube.run(SqliteSink(self.path), until_empty=True).problems)

    def keys(self) -> list[tuple[int, int]]:
        rows = SqliteSink(self.path).rows(f"public.{self.table}")
        return sorted((int(key[0]), int(key[1])) for _, key in rows)

    def check_equal(self) -> None:
        assert self.keys() == self.tube_db.run(f"SELECT id, day FROM {self.table} ORDER BY id, day")

    def check_backfill(self) -> None:
        """The problem stays until a backfill: another check and `attach` do not remove it."""
        self.tube_db.tube.attach(self.table)
        assert PROBLEM in self.run()
        self.tube_db.tube.backfill(self.table)
        assert (self.run(), problem_of(self.tube_db, self.table)) == ("", "")
        self.check_equal()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Deliver touches during the block."""
        stop = threading.Event()
        job = threading.Thread(target=self.tube_db.tube.run, args=[SqliteSink(self.path)], kwargs={"stop": stop})
        job.start()
        try:
            yield
        finally:
            stop.set()
            job.join()

    def wait_for(self, rows: int) -> None:
        """Wait until the copy has this number of rows, and the job has deleted their pods."""
        pods = "SELECT FROM tube.pods_t"
        assert wait_until(lambda: len(self.keys()) == rows and not self.tube_db.run(pods), 60)


# The version of the functions before triggers and partitions had versions.
FORMER = """
ALTER TABLE tube.sources DROP COLUMN triggers, DROP COLUMN parents;
UPDATE tube.sources SET storage = storage - 'attached';
DROP TABLE tube.passing; UPDATE tube.installation SET version = 9
"""
