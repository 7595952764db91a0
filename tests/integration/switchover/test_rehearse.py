"""`rehearse`: everything except the decision, on a live system."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from support.switchover import Moving, killed, wait_until
from trueup.errors import CheckFailed
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.phases import FENCE, FINAL_ROUND, GATE, RELEASE, SEQUENCES, BudgetSpent
from trueup.verbs.switchover.status import status

# What a rehearsal must not change on either side.
LEFT = """
SELECT state, token, token_hash, epoch, attempt, decided_at, opened_at,
       (SELECT array_agg(tgrelid::regclass::text || tgname ORDER BY 1) FROM pg_trigger
         WHERE tgname LIKE 'trueup_guard%'), pg_sequence_last_value('trueup.switchover_changed_main')
  FROM trueup.switchover
"""
# A trigger that would fire for rows of the sync: it is disabled on the target until the decision.
NOISY = """
CREATE FUNCTION noisy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER noisy AFTER INSERT ON visits FOR EACH ROW EXECUTE FUNCTION noisy();
ALTER TABLE visits ENABLE ALWAYS TRIGGER noisy;
"""
CARRIED = "SELECT count(*) FROM people WHERE name LIKE 'w%'"
ENABLED = "SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'noisy'"


@contextmanager
def working(moving: Moving) -> Iterator[list[int]]:
    """Write to the old database in both isolation levels, and let the sync follow; no writer may see an error."""
    counts, errors, stopped = [0, 0], list[BaseException](), threading.Event()

    def write(number: int, level: psycopg.IsolationLevel) -> None:
        try:
            with psycopg.connect(moving.old.uri, application_name="shop") as connection:
                connection.isolation_level = level
                while not stopped.wait(0.003):
                    # The snapshot of REPEATABLE READ is older than the write.
                    connection.execute("SELECT count(*) FROM people")
                    connection.execute(f"INSERT INTO people (name) VALUES ('w{number}-{counts[number]}')")
                    connection.commit()
                    counts[number] += 1
        except BaseException as error:
            errors.append(error)

    levels = (psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ)
    threads = [threading.Thread(target=write, args=pair) for pair in enumerate(levels)]
    threads.append(threading.Thread(target=moving.follow))
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(counts))
        # Two rounds at least: a sync that has not begun is refused while a rehearsal runs.
        wait_until(lambda: moving.new.execute(CARRIED)[0][0] > 0)
        copied = moving.new.execute(CARRIED)[0][0]
        wait_until(lambda: moving.new.execute(CARRIED)[0][0] > copied)
        yield counts
    finally:
        stopped.set()
        for thread in threads[:2]:
            thread.join()
        # It may be about to continue after a rehearsal.
        wait_until(lambda: moving.stop_sync() or not threads[2].is_alive())
        threads[2].join()
    assert errors == []


def page_of(path: str) -> str:
    page = Path(path)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    return page.read_text(encoding="utf-8")


def test_a_rehearsal_on_a_live_system(moving: Moving) -> None:
    """No error for writers, both databases as before, the sync goes on; then the real move, and the way back."""
    moving.both(NOISY)
    moving.prepare()
    moving.run_sync()
    before = moving.old.execute(LEFT), moving.new.execute(LEFT)
    assert moving.new.execute(ENABLED) == [("D",)]
    with working(moving) as counts:
        outcome = moving.rehearse(proof="keys")
        assert (moving.old.execute(LEFT), moving.new.execute(LEFT)) == before
        assert moving.new.execute(ENABLED) == [("D",)]
        assert all(condition.holds for condition in outcome.conditions)
        assert len(outcome.conditions) == 9
        assert 0 < outcome.pause_ms < 60_000
        assert set(outcome.milliseconds) >= {FENCE, FINAL_ROUND, SEQUENCES, GATE, RELEASE}
        counted = list(counts)
        wait_until(lambda: all(now > then for now, then in zip(counts, counted, strict=True)))
        # The sync that was stopped for the rehearsal copies what is written now.
        wait_until(lambda: moving.new.execute(CARRIED)[0][0] > sum(counted))
    assert status(moving.request()).in_use == "old"
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    page = page_of(outcome.page)
    for text in ("READY", "What will happen", "not rehearsed", "How to go back", "switchover rollback --from old"):
        assert text in page, text
    done = moving.execute(proof="keys")
    assert "MOVED" in page_of(done.page)
    assert moving.new.execute(ENABLED) == [("A",)]
    with pytest.raises(CheckFailed, match="nothing to rehearse: new is in use"):
        moving.rehearse()
    moving.new.execute("INSERT INTO people (name) VALUES ('on the new one')")
    back = moving.rehearse(rollback=True)
    assert (back.source, back.target, back.rollback) == ("new", "old", True)
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    assert "MOVED BACK" in page_of(moving.rollback().page)
    assert moving.differences() == []


def test_what_closes_the_gate_is_in_the_report(moving: Moving) -> None:
    """The error is that of `execute`, and both write a page before it is raised."""
    moving.prepare()
    with psycopg.connect(moving.old.uri, application_name="slowcoach") as slow:
        slow.execute("UPDATE visits SET price = 0 WHERE id = 1")
        with pytest.raises(BudgetSpent, match="slowcoach"):
            moving.rehearse(budget=3.0)
    (page,) = Path().glob("switchover_main_rehearse-*.html")
    assert "slowcoach" in page_of(str(page))
    page.unlink()
    moving.new.execute(f"{moving.as_sync()} DELETE FROM places WHERE b = 1")
    for action, verdict in ((moving.rehearse, "NOT READY"), (moving.execute, "NOT MOVED")):
        with pytest.raises(GateClosed, match=r"rows equal: public\.places"):
            action()
        (page,) = Path().glob(f"switchover_main_{action.__name__}-*.html")
        text = page_of(str(page))
        assert verdict in text
        assert "the same database is in use as before" in text
        assert "public.places" in text
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]


def test_a_kill_in_the_pause_of_a_rehearsal(moving: Moving) -> None:
    """The server releases everything; writers and the sync go on, and nothing can open the new database."""
    moving.prepare()
    with working(moving) as counts:
        for phase in (FINAL_ROUND, RELEASE):
            killed(moving.rehearse, phase)
            before = list(counts)
            wait_until(lambda before=before: all(now > then for now, then in zip(counts, before, strict=True)))  # type: ignore[misc]
            assert moving.new.execute("SELECT state, token_hash FROM trueup.switchover") == [("use_next", None)]
        total = sum(counts)
        wait_until(lambda: moving.new.execute(CARRIED)[0][0] >= total)
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    outcome = moving.rehearse()
    assert json.dumps(outcome.as_json())
    assert status(moving.request()).phase == "not moved"
