"""`--proof validated`: a validation proves the rows, and nothing is switched that it did not compare."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from support.fixtures import Databases
from support.switchover import Moving, begin, repeating, wait_until
from trueup.api.validate import Validation
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.switchover import pause as pauses
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.phases import BudgetSpent
from trueup.verbs.sync import round as round_of_sync
from trueup.verbs.sync import state
from trueup.verbs.sync.link import Link
from trueup.verbs.validate.fence import Fence, wait_for

SCHEMA = """
CREATE TABLE people (id serial PRIMARY KEY, name text);
CREATE TABLE visits (id int PRIMARY KEY, person int REFERENCES people, price numeric);
CREATE TABLE events (id int PRIMARY KEY, n float8);
CREATE TABLE notes (person int, note text);
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
"""
ROWS = """
INSERT INTO people (name) SELECT 'p' || g FROM generate_series(1, 200) g;
INSERT INTO visits SELECT g, 1 + g % 200, g / 8.0 FROM generate_series(1, 1000) g;
INSERT INTO parts VALUES (1), (2); INSERT INTO notes SELECT g / 2, 'x' FROM generate_series(1, 100) g;
"""
TABLES = ("people", "visits", "events", "parts", "notes")
ANOTHER_TARGET = """
CREATE FUNCTION public.another_target() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    NEW.servers := jsonb_set(NEW.servers, '{target,system}', '"1/1"'); RETURN NEW;
END$$;
CREATE TRIGGER another_target BEFORE UPDATE ON trueup.validation FOR EACH ROW WHEN (NEW.name = 'all')
    EXECUTE FUNCTION public.another_target();
UPDATE trueup.validation SET name = name;
"""


class Running:
    """Runs validations of the two databases in threads of this process."""

    def __init__(self, moving: Moving) -> None:
        self._nodes = {"old": moving.old.uri, "new": moving.new.uri}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, **settings: Any) -> None:
        """Create and start a validation."""
        arguments = {"check_interval": 0.1, "row_error_delay": 0.3, "source": "old", "target": "new", **settings}
        validation = self.of(name)
        validation.create(**arguments)
        run = threading.Thread(target=validation.start, kwargs={"engine": "local"}, daemon=True)
        self._threads[name] = run
        run.start()

    def of(self, name: str) -> Validation:
        """Return a validation by name."""
        return Validation(name, nodes=self._nodes)

    def is_running(self, name: str) -> bool:
        """Return whether the validation is running."""
        return self.of(name).status().state == "running"

    def close(self) -> None:
        """Delete all validations, with their slots."""
        for name, thread in self._threads.items():
            self.of(name).delete()
            thread.join(60)


@pytest.fixture
def moving(databases: Databases) -> Moving:
    """Two synced databases with a partitioned table; the sync has a position."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    made = begin(old, new)
    made.run_sync()
    return made


@pytest.fixture
def running(moving: Moving, short_pauses: None) -> Iterator[Running]:
    """No validation runs yet."""
    made = Running(moving)
    yield made
    made.close()


def test_an_unsuitable_validation_is_refused_before_the_pause(
    moving: Moving, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation that is missing, partial, of another sync, stopped, or without a scrub is refused."""
    monkeypatch.setattr(pauses, "pause", lambda *arguments: pytest.fail("it paused"))

    def refused(*texts: str, **options: Any) -> None:
        with pytest.raises(CheckFailed) as found:
            moving.execute(proof="validated", **options)
        assert [text for text in texts if text not in str(found.value)] == [], str(found.value)

    refused("there is no validation from old to new on new or old")
    running.start(
        "part", tables=("public.people", "public.visits"), exclude_columns=("public.visits.price",), mode="fast"
    )
    running.start("lag", tables=("public.*",), syncer="lag:0")
    running.start("all", tables=("public.*",))
    for name in ("part", "lag", "all"):
        wait_until(partial(running.is_running, name))
    refused("several validations from old to new: all (on new), lag (on new), part (on new)")
    refused("does not cover public.parts", "its mode is fast", "it has excluded columns", validation="part")
    refused("it follows lag:0, not the sync main", validation="lag")
    # Its target has the same name and is another database; a session that is called like its sessions does not help.
    moving.new.execute(ANOTHER_TARGET)
    with psycopg.connect(moving.new.uri, application_name="trueup validate all"):
        refused("its target is another database than new", validation="all")
    moving.new.execute("DROP FUNCTION public.another_target CASCADE")
    systems = "SELECT servers #>> '{target,system}' <> '1/1' FROM trueup.validation WHERE name = 'all'"
    wait_until(lambda: moving.new.execute(systems) == [(True,)])
    refused("there is no validation gone from old to new", validation="gone")
    # Rows that never changed were not compared.
    refused("public.people was not scrubbed completely since only the sync can write to new", validation="all")
    running.of("all").stop()
    refused("validation all: it is stopped", validation="all")
    with pytest.raises(ConfigError, match="need --proof validated"):
        moving.request(proof="keys", validation="all")
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]


def test_a_validation_proves_the_rows(moving: Moving, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is named, before the pause and inside of it; when all rows are proven, the switchover works."""
    # Wrong from the start, and not in the log: only a scrub finds it.
    moving.new.execute("UPDATE visits SET price = 77 WHERE id = 700")
    moving.prepare()
    running.start("v", tables=("public.*",), scrub_share=0.5)
    wait_until(lambda: running.is_running("v"))
    with pytest.raises(
        GateClosed, match=r"rows equal: the validation .* has 1 open error: public\.visits \(700\) changed"
    ):
        moving.execute(proof="validated")
    running.of("v").update(scrub_share=0.0)

    # When a round copies the row again, the error resolves by itself.
    moving.old.execute("UPDATE visits SET price = price WHERE id = 700")
    change = "UPDATE people SET name = name || '.' WHERE id IN (5, 6); DELETE FROM visits WHERE id = 3"
    # The gate sees two failed checks; on a slow machine the validation has reported the error by then.
    spoiling = "UPDATE public.people SET name = name || '!' WHERE id = 5"
    _until_resolved(moving, running)
    with (
        in_the_pause(moving, monkeypatch, change, spoiling),
        pytest.raises(GateClosed, match=r"rows equal: .*public\.people \(5\) (differs|changed)"),
    ):
        moving.execute(proof="validated")
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    moving.old.execute("UPDATE people SET name = name WHERE id = 5")
    _until_resolved(moving, running)

    # What the log does not show: a partition with other rows.
    with (
        in_the_pause(moving, monkeypatch, change, "DELETE FROM public.parts WHERE id = 2"),
        pytest.raises(GateClosed, match=r"rows equal: public\.parts: 2 rows on old, 1 row on new"),
    ):
        moving.execute(proof="validated")
    # A table without a key, which no validation covers: one of two equal rows is missing.
    moving.old.execute("DELETE FROM parts WHERE id = 2")
    with (
        in_the_pause(
            moving, monkeypatch, change, "DELETE FROM public.notes WHERE ctid = (SELECT max(ctid) FROM public.notes)"
        ),
        pytest.raises(
            GateClosed, match=r"rows equal: public\.notes: 100 rows on old, 99 rows on new \(it has no key: copy"
        ),
    ):
        moving.execute(proof="validated")
    moving.old.execute("UPDATE notes SET note = note")
    # A deleted parent: the foreign keys of a round's rows are checked without a digest.
    with (
        in_the_pause(
            moving, monkeypatch, "UPDATE visits SET price = 1 WHERE id = 8", "DELETE FROM public.people WHERE id = 9"
        ),
        pytest.raises(GateClosed, match=r"foreign keys valid: visits_person_fkey of public\.visits"),
    ):
        moving.execute(proof="validated")
    moving.old.execute("UPDATE people SET name = name WHERE id = 9")
    # The publication lacked a table for a moment: what the validation has not seen, it does not prove.
    (own,) = (name for (name,) in moving.old.execute("SELECT pubname FROM pg_publication WHERE pubname LIKE 'trueup%'"))
    hidden = f"ALTER PUBLICATION {own} DROP TABLE people; ALTER PUBLICATION {own} ADD TABLE people"
    with (
        in_the_pause(moving, monkeypatch, hidden, ""),
        pytest.raises(GateClosed, match=r"changes of public\.people were missed .*its publication was altered"),
    ):
        moving.execute(proof="validated", budget=20.0)
    running.of("v").update(scrub_share=0.5)
    wait_until(lambda: not running.of("v").status().total("unchecked"))
    running.of("v").update(scrub_share=0.0)
    # A row that was pending when the marker was validated is an error a moment later.
    with monkeypatch.context() as patch:

        def wait_and_find(*arguments: Any, **options: Any) -> Fence:
            fence = wait_for(*arguments, **options)
            if "every" in options:
                moving.new.execute(
                    "INSERT INTO trueup.validation_error (validation, source, target, key, kind, columns, op, lsn,"
                    " first_at, last_at) VALUES ('v', 'public.people', 'public.people', '[\"6\"]', 'changed',"
                    " '{name}', 'target', 1, now(), now() + interval '1 hour')"
                )
            return fence

        patch.setattr("trueup.verbs.switchover.validated.wait_for", wait_and_find)
        with pytest.raises(GateClosed, match=r"rows equal: .* has 1 open error: public\.people \(6\) changed"):
            moving.execute(proof="validated")
    moving.new.execute("DELETE FROM trueup.validation_error WHERE op = 'target'")
    # The validation hangs in the pause: everything is released when the budget is spent.
    with psycopg.connect(moving.new.uri) as lock, monkeypatch.context() as patch:
        pause = pauses.pause
        hang = "LOCK trueup.validation_table IN ACCESS EXCLUSIVE MODE"
        patch.setattr(pauses, "pause", lambda *arguments: (lock.execute(hang), pause(*arguments))[1])
        with pytest.raises(BudgetSpent, match="gate"):
            moving.execute(proof="validated", budget=8.0)
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]

    with in_the_pause(moving, monkeypatch, change, ""):
        outcome = moving.execute(proof="validated", validation="v")
    assert outcome.keys == 2
    rows = next(condition for condition in outcome.conditions if condition.name == "rows equal")
    assert rows.detail.startswith("4 tables, validated by v up to ")
    assert rows.detail.endswith("; 2 partitioned or keyless tables by digests inside of the pause")
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    assert moving.differences(TABLES) == []


def _until_resolved(moving: Moving, running: Running) -> None:
    moving.run_sync()
    wait_until(lambda: not running.of("v").status().open_errors)


class in_the_pause:
    """A write of an application just before the pause, and a wrong write on the target after the final round."""

    def __init__(self, moving: Moving, monkeypatch: pytest.MonkeyPatch, change: str, wrong: str) -> None:
        self._moving, self._change, self._wrong = moving, change, wrong
        self._is_paused = False
        self._context = monkeypatch.context()

    def __enter__(self) -> None:
        patch = self._context.__enter__()
        apply, pause = round_of_sync.apply_rows, pauses.pause

        def spoiled(link: Link, *arguments: Any) -> Any:
            applied = apply(link, *arguments)
            if self._is_paused and self._wrong:
                with state.writing(link.target, link.name, link.epoch):
                    link.target.execute(self._wrong)
            return applied

        def paused(*arguments: Any) -> Any:
            self._is_paused = True
            self._moving.old.execute(self._change)
            return pause(*arguments)

        patch.setattr(round_of_sync, "apply_rows", spoiled)
        patch.setattr(pauses, "pause", paused)

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)


def test_a_validation_proves_a_rollback(moving: Moving, running: Running) -> None:
    moving.execute(proof="keys")
    moving.new.execute("UPDATE people SET name = name || '.'; DELETE FROM visits WHERE id = 3")
    moving.run_sync_back()
    moving.new.execute("INSERT INTO parts VALUES (7)")
    # Wrong on the old database, and not touched on the new one: only a scrub finds it.
    with psycopg.connect(moving.old.uri, autocommit=True) as connection:
        connection.execute(moving.as_sync())
        connection.execute("UPDATE visits SET price = 77 WHERE id = 700")
    running.start("back", tables=("public.*",), source="new", target="old", syncer="sync:main", scrub_share=0.5)
    wait_until(lambda: running.is_running("back"))
    with pytest.raises(GateClosed, match=r"public\.visits \(700\) changed"):
        moving.rollback(proof="validated", validation="back")
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    moving.new.execute("UPDATE visits SET price = price WHERE id = 700")
    # Rounds copy the row, and the error resolves by itself. A table for which a TRUNCATE waits cannot be validated.
    truncate = "TRUNCATE events; INSERT INTO events SELECT g, random() FROM generate_series(1, 9) g"
    with repeating(moving.new, truncate) as ended:
        wait_until(lambda: _is_back(moving))
        wait_until(lambda: ended != [])
    assert ended == ["25006"]
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    assert moving.differences(TABLES) == []


def _is_back(moving: Moving) -> bool:
    try:
        return bool(moving.rollback(proof="validated", validation="back", budget=9.0).target == "old")
    except (GateClosed, BudgetSpent):
        return False
