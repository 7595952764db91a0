"""A validation as a streaming job over the stream of changes: the same results as in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.fixtures import Databases, Spark
from trueup.api.validate import Validation
from trueup.testing.postgres import Database
from trueup.verbs.validate.batch import Touches
from trueup.verbs.validate.checks import MAX_KEYS_PER_TASK, Checker

PATIENCE = 240.0


def _until(condition: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return found


def _validated(up: Database, down: Database, script: Callable[[Validation], None], **settings: Any) -> None:
    """Validate on Spark in this thread, as it requires, while another thread runs `script`."""
    validation = Validation(f"v_{up.name}"[-30:], nodes={"n1": up.uri, "n2": down.uri})
    settings_of_run = {"syncer": "lag:0.5", "check_interval": 0.2, "row_error_delay": 0.3, **settings}
    validation.create(source="n1", target="n2", tables=("public.*",), **settings_of_run)
    problems: list[BaseException] = []

    def run() -> None:
        try:
            _until(lambda: validation.status().state == "running")
            script(validation)
        except BaseException as error:
            problems.append(error)
        finally:
            validation.stop()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert validation.start(engine="spark") == "stopped by the user"
        thread.join(PATIENCE)
        assert problems == []
    finally:
        validation.delete()


def test_a_validation_as_a_streaming_job(spark: Spark, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    up, down = databases(2)
    sizes: list[int] = []
    record = Checker.record

    def recorded(self: Checker, touches: Touches, *rest: Any) -> None:
        sizes.append(sum(len(keys) for keys in touches.values()))
        record(self, touches, *rest)

    monkeypatch.setattr(Checker, "record", recorded)
    for database in (up, down):
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, k int UNIQUE)"
        )

    def script(validation: Validation) -> None:
        up.execute("ALTER TABLE b ALTER k SET NOT NULL; ALTER TABLE b DROP CONSTRAINT b_pkey")
        up.execute("ALTER TABLE b ADD PRIMARY KEY (k); INSERT INTO b VALUES (2, 2)")
        up.execute("INSERT INTO t SELECT i FROM generate_series(1, 2000) i; UPDATE t SET n = id")
        down.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 2000) i WHERE i <> 77")
        down.execute("UPDATE t SET n = 0 WHERE id = 5")
        _until(lambda: len(validation.errors()) == 2)
        found = {(error.key, error.kind) for error in validation.errors()}
        assert found == {(("77",), "missing"), (("5",), "changed")}
        status = validation.status()
        assert (status.total("inserts"), status.total("updates"), status.total("pending")) == (2000, 2000, 0)
        assert [table.stage for table in status.tables] == ["stopped", "running"]
        assert "its key was (id) and is now (k)" in status.tables[0].reason
        # Tables change while the stream runs.
        assert validation.remove(["public.b"]) == ("public.b",)
        up.execute("CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (1)")
        down.execute("CREATE TABLE c (id int PRIMARY KEY)")
        _until(lambda: [table.source for table in validation.status().tables] == ["public.c", "public.t"])
        assert validation.restart(["public.c"]) == ("public.c",)
        _until(lambda: [error.source for error in validation.errors()] == ["public.t", "public.t", "public.c"])
        _until(lambda: validation.status().blind_spots == [])
        validation.remove(["public.c"])
        # While errors are open, the driver gets the proven keys too; not all at once, because it holds them in memory.
        sizes.clear()
        for database in (down, up):
            database.execute("INSERT INTO t SELECT i, i FROM generate_series(10001, 22000) i")
        _until(lambda: validation.status().total("inserts") == 14_000)
        assert sum(sizes) == 12_000
        assert max(sizes) <= MAX_KEYS_PER_TASK
        # A column that arrives later, on the target first.
        down.execute("ALTER TABLE t ADD COLUMN late int; UPDATE t SET late = 0 WHERE id = 8")
        up.execute("ALTER TABLE t ADD COLUMN late int; UPDATE t SET late = 1 WHERE id = 8")
        _until(lambda: [error.columns for error in validation.errors() if error.key == ("8",)] == [("late",)])
        down.execute("UPDATE t SET late = 1 WHERE id = 8")
        _until(lambda: len(validation.errors()) == 2)
        # Changes belong to tables, not to names.
        up.execute(
            "BEGIN; ALTER TABLE t RENAME TO x; INSERT INTO x VALUES (9999, 1); ALTER TABLE x RENAME TO t; COMMIT"
        )
        _until(lambda: len(validation.errors()) == 3)
        up.execute("ALTER TABLE t RENAME TO t_old; CREATE TABLE t (id int PRIMARY KEY, n int)")
        fence = validation.fence()
        assert fence.exit_code == 2
        assert any("public.t " in text and "another table has its name on the source" in text for text in fence.reasons)

    _validated(up, down, script)


def test_a_validation_of_a_change_log_compares_on_spark(spark: Spark, databases: Databases) -> None:
    up, down = databases(2)
    for database in (up, down):
        database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")

    def script(validation: Validation) -> None:
        up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 2000) i")
        down.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 2000) i WHERE i <> 77")
        _until(lambda: [error.key for error in validation.errors()] == [("77",)])
        assert validation.status().total("inserts") == 2000

    _validated(up, down, script, changes="changelog")
