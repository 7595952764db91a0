"""`--proof validated`: a validation speaks for the rows, and nothing is switched that it did not look at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from support.fixtures import Databases
from trueup.api.validate import Validations
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.switchover import run as execute
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.phases import BudgetSpent
from trueup.verbs.sync import round as round_of_sync

Wait = Callable[..., None]

SCHEMA = """
CREATE TABLE people (id serial PRIMARY KEY, name text);
CREATE TABLE visits (id int PRIMARY KEY, person int REFERENCES people, price numeric);
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
"""
ROWS = """
INSERT INTO people (name) SELECT 'p' || g FROM generate_series(1, 200) g;
INSERT INTO visits SELECT g, 1 + g % 200, g / 8.0 FROM generate_series(1, 1000) g;
INSERT INTO parts VALUES (1), (2);
"""
TABLES = ("people", "visits", "parts")


class Running:
    """Validations of the two databases, in threads of this process."""

    def __init__(self, moving: Any) -> None:
        self.calls = Validations(nodes={"old": moving.old.uri, "new": moving.new.uri})
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, **settings: Any) -> None:
        """Begin one."""
        given = {"check_interval": 0.1, "row_error_delay": 0.3, "source": "old", "target": "new", **settings}
        self.calls.create(name, **given)
        run = threading.Thread(target=self.calls.start, args=(name,), kwargs={"engine": "local"}, daemon=True)
        self._threads[name] = run
        run.start()

    def is_running(self, name: str) -> bool:
        """Whether it is at work."""
        return self.calls.status(name).state == "running"

    def close(self) -> None:
        """End all, with their slots."""
        for name, thread in self._threads.items():
            self.calls.delete(name)
            thread.join(60)


@pytest.fixture
def moving(databases: Databases, begin: Callable[..., Any]) -> Any:
    """Two databases, one table of them partitioned; the sync has left its mark."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    made = begin(old, new)
    made.run_sync()
    return made


@pytest.fixture
def running(moving: Any) -> Iterator[Running]:
    """Nothing runs yet."""
    made = Running(moving)
    yield made
    made.close()


def test_what_does_not_speak_for_all_rows_is_refused_before_the_pause(
    moving: Any, running: Running, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a validation that is absent, partial, of another sync, stopped, or has not seen all rows."""
    monkeypatch.setattr(execute, "_pause", lambda *arguments: pytest.fail("it paused"))

    def refused(*texts: str, **options: Any) -> None:
        with pytest.raises(CheckFailed) as found:
            moving.execute(proof="validated", **options)
        assert [text for text in texts if text not in str(found.value)] == [], str(found.value)

    refused("there is no validation from old to new on new or old")
    running.start("part", tables=("public.people", "public.visits"), excludes=("public.visits.price",), mode="fast")
    running.start("lag", tables=("public.*",), syncer="lag:0")
    running.start("all", tables=("public.*",))
    for name in ("part", "lag", "all"):
        wait_until(lambda name=name: running.is_running(name))
    refused("several validations from old to new: all (on new), lag (on new), part (on new)")
    refused("does not cover public.parts", "its mode is fast", "it has --exclude", validation="part")
    refused("it follows lag:0, not the sync main", validation="lag")
    refused("there is no validation gone from old to new", validation="gone")
    # Rows that never changed were not looked at.
    refused("no sweep has gone through all of public.people since new refuses writes", validation="all")
    running.calls.stop("all")
    refused("validation all: it is stopped", validation="all")
    with pytest.raises(ConfigError, match="are for --proof validated"):
        moving.asked(proof="keys", validation="all")
    assert moving.who_takes_writes("DELETE FROM visits") == ["old"]


def test_a_validation_speaks_for_the_rows(
    moving: Any, running: Running, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is named, before the pause and inside of it; when all is proven, it is moved, and nothing is lost."""
    # Wrong since before anybody looked, and nothing of it in the log: only a sweep finds it.
    moving.new.execute("UPDATE visits SET price = 77 WHERE id = 700")
    moving.prepare()
    running.start("v", tables=("public.*",), sweep=0.5)
    wait_until(lambda: running.is_running("v"))
    with pytest.raises(GateClosed, match=r"rows equal: 1 errors of .* open: public\.visits \(700\) changed"):
        moving.execute(proof="validated")
    running.calls.update("v", sweep=0.0)

    # Carried over again the row is right, and the error resolves by itself.
    moving.old.execute("UPDATE visits SET price = price WHERE id = 700")
    change = "UPDATE people SET name = name || '.' WHERE id IN (5, 6); DELETE FROM visits WHERE id = 3"
    spoiling = "UPDATE public.people SET name = name || '!' WHERE id = 5"
    _until_resolved(moving, running, wait_until)
    with (
        in_the_pause(moving, monkeypatch, change, spoiling),
        pytest.raises(GateClosed, match=r"rows equal: public\.people \(5\) differs, as v sees it"),
    ):
        moving.execute(proof="validated")
    assert moving.who_takes_writes("DELETE FROM visits") == ["old"]
    moving.old.execute("UPDATE people SET name = name WHERE id = 5")
    _until_resolved(moving, running, wait_until)

    # What the log does not tell: a partition that is not what it was.
    with (
        in_the_pause(moving, monkeypatch, change, "DELETE FROM public.parts WHERE id = 2"),
        pytest.raises(GateClosed, match=r"rows equal: public\.parts: 2 rows against 1"),
    ):
        moving.execute(proof="validated")
    # A parent that is gone: foreign keys of the rows that a round carries are looked at without any digest.
    moving.old.execute("DELETE FROM parts WHERE id = 2")
    with (
        in_the_pause(
            moving, monkeypatch, "UPDATE visits SET price = 1 WHERE id = 8", "DELETE FROM public.people WHERE id = 9"
        ),
        pytest.raises(GateClosed, match=r"foreign keys valid: visits_person_fkey of public\.visits"),
    ):
        moving.execute(proof="validated")
    moving.old.execute("UPDATE people SET name = name WHERE id = 9")
    # The validation hangs in the pause: all is released when the budget is spent.
    with psycopg.connect(moving.new.uri) as lock, monkeypatch.context() as patch:
        pause = execute._pause
        hang = "LOCK trueup.validation_table IN ACCESS EXCLUSIVE MODE"
        patch.setattr(execute, "_pause", lambda *given: (lock.execute(hang), pause(*given))[1])
        with pytest.raises(BudgetSpent, match="gate"):
            moving.execute(proof="validated", budget=0.5)
    assert moving.who_takes_writes("DELETE FROM visits") == ["old"]

    with in_the_pause(moving, monkeypatch, change, ""):
        outcome = moving.execute(proof="validated", validation="v")
    assert outcome.keys == 2
    rows = next(each for each in outcome.conditions if each.name == "rows equal")
    assert rows.detail.startswith("3 tables, validated by v up to ")
    assert moving.who_takes_writes("DELETE FROM visits") == ["new"]
    assert moving.differences(TABLES) == []


def _until_resolved(moving: Any, running: Running, wait_until: Wait) -> None:
    moving.run_sync()
    wait_until(lambda: not running.calls.status("v").open_errors)


class in_the_pause:
    """A write of an application just before the pause, and on the target something beside what the last round did."""

    def __init__(self, moving: Any, monkeypatch: pytest.MonkeyPatch, change: str, beside: str) -> None:
        self._moving, self._change, self._beside = moving, change, beside
        self._context = monkeypatch.context()

    def __enter__(self) -> None:
        patch = self._context.__enter__()
        apply, pause = round_of_sync.apply_rows, execute._pause

        def spoiled(link: Any, *given: Any) -> Any:
            done = apply(link, *given)
            if link.direct and self._beside:
                link.target.execute(self._beside)
            return done

        def paused(*given: Any) -> Any:
            self._moving.old.execute(self._change)
            return pause(*given)

        patch.setattr(round_of_sync, "apply_rows", spoiled)
        patch.setattr(execute, "_pause", paused)

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)


def test_a_validation_speaks_for_the_way_back_too(moving: Any, running: Running, wait_until: Wait) -> None:
    moving.execute(proof="keys")
    moving.new.execute("UPDATE people SET name = name || '.'; DELETE FROM visits WHERE id = 3")
    moving.run_sync_back()
    moving.new.execute("INSERT INTO parts VALUES (7)")
    # Wrong on the old one, and nobody touched it on the new one: only a sweep finds it.
    with psycopg.connect(moving.old.uri, autocommit=True) as connection:
        connection.execute("SET application_name = 'trueup sync main'")
        connection.execute("UPDATE visits SET price = 77 WHERE id = 700")
    running.start("back", tables=("public.*",), source="new", target="old", syncer="sync:main", sweep=0.5)
    wait_until(lambda: running.is_running("back"))
    with pytest.raises(GateClosed, match=r"public\.visits \(700\) changed"):
        moving.rollback(proof="validated", validation="back")
    assert moving.who_takes_writes("DELETE FROM visits") == ["new"]
    moving.new.execute("UPDATE visits SET price = price WHERE id = 700")
    # Rounds carry it over, and the error resolves by itself; then nothing is in the way.
    wait_until(lambda: _is_back(moving))
    assert moving.who_takes_writes("DELETE FROM visits") == ["old"]
    assert moving.differences(TABLES) == []


def _is_back(moving: Any) -> bool:
    try:
        return bool(moving.rollback(proof="validated", validation="back").target == "old")
    except GateClosed:
        return False
