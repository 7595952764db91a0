"""Operating a validation: failed and repeated starts, wrong options, lists, exit codes, what `delete` leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.validate import Copy
from trueup.capture.log.slot import lsn_number
from trueup.cli.main import run
from trueup.errors import CheckFailed, ConfigError, Interrupted, NodeError, TrueupError
from trueup.verbs.validate.validator import Validator

NEW = ("--from", "n1", "--to", "n2", "--name", "v", "--check-interval", "0.1", "--row-error-delay", "0.3")


def _validate(copy: Copy, *arguments: str) -> int:
    return run(["validate", *arguments, "--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}"])


def _refused(copy: Copy, tables: str, **settings: object) -> str:
    """Create and start a validation that must be refused; return the message."""
    copy.create(tables, **settings)
    with pytest.raises(TrueupError) as refused:
        copy.validation.start(engine="local", log=copy.messages.append)
    assert copy.left() == []
    return str(refused.value)


def test_a_start_that_is_refused_does_not_block_the_right_one(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY)")
    copy.replicate()
    assert "table public.typo does not exist" in _refused(copy, "public.typo")
    assert "public.u" in _refused(copy, "public.t", filters=("public.u: id > 0",))
    assert 'column "missing" does not exist' in _refused(copy, "public.t,public.u", filters=("public.t: missing > 0",))
    assert "column missing does not exist" in _refused(copy, "public.*", exclude_columns=("public.t.missing",))
    assert "public.other.n" in _refused(copy, "public.t", exclude_columns=("public.other.n",))
    assert "column missing does not exist" in _refused(copy, "public.t", renames=("public.t.missing=n",))
    assert "column missing does not exist" in _refused(copy, "public.t", renames=("public.t.n=missing",))
    assert "column missing does not exist" in _refused(copy, "public.t,public.u", constants=("public.t.missing=1",))
    assert "public.other" in _refused(copy, "public.t", routes=("public.other=public.u",))
    # What a failed start has created is removed.
    copy.up.execute(f"CREATE PUBLICATION {copy.slot}; CREATE PUBLICATION mine FOR TABLE t")
    copy.start("public.t", publication="mine")
    assert copy.left() == [copy.slot]
    assert copy.fence().exit_code == 0
    copy.stop()
    with pytest.raises(ConfigError, match="already exists with another value of tables"):
        copy.create("public.u")


def test_a_second_start_does_not_change_a_running_validation(copy: Copy, capfd: pytest.CaptureFixture[str]) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start("public.t")
    assert _validate(copy, "start", "--name", "v", "--row-error-delay", "77", "--mode", "fast") == 2
    assert "validation v is already running" in capfd.readouterr().err
    assert _validate(copy, "start", *NEW, "--tables", "public.t", "--lag", "5") == 2
    assert copy.validation.update().row_error_delay == 0.4
    assert copy.validation.update().syncer == ""
    copy.stop()
    assert copy.validation.create(row_error_delay=7.0).row_error_delay == 7.0


def test_lists_say_that_there_are_more(copy: Copy, capfd: pytest.CaptureFixture[str]) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.spoil("t", "RETURN NULL;", "INSERT")
    copy.start("public.t", row_error_delay=30.0)
    copy.up.execute("INSERT INTO t SELECT i FROM generate_series(1, 12) i")
    copy.until(lambda: copy.status().total("pending") == 12)
    copy.up.execute("UPDATE t SET n = 1 WHERE id <= 2; DELETE FROM t WHERE id = 3")
    copy.until(lambda: copy.status().total("deletes") == 1)
    status = copy.status()
    assert status.tables[0].pending_by_operation == {"insert": 9, "update": 2}
    assert _validate(copy, "status", "v", "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["pending_by_operation"] == shown["tables"][0]["pending_by_operation"] == {"insert": 9, "update": 2}
    copy.validation.update(row_error_delay=0.0)
    copy.until(lambda: len(copy.errors()) == 11)
    assert _validate(copy, "errors", "v", "--limit", "4") == 1
    output = capfd.readouterr()
    assert output.out.count("missing") == 4
    assert "4 of 11 errors are shown; use --limit 11" in output.err
    assert _validate(copy, "errors", "v", "--limit", "4", "--json") == 1
    output = capfd.readouterr()
    assert len(json.loads(output.out)) == 4
    assert "4 of 11 errors" in output.err
    assert _validate(copy, "errors", "v", "--limit", "11") == 1
    assert "errors are shown" not in capfd.readouterr().err


@pytest.mark.parametrize("sessions", ["kept", "lost"])
def test_a_dropped_subscription_is_named(copy: Copy, sessions: str) -> None:
    """Also if the validation opens its sessions again, and so looks for a syncer, after it was dropped."""
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start("public.t")
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} DISABLE")
    if sessions == "lost":
        copy.down.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name LIKE 'trueup validate%'"
        )
    copy.down.execute(f"DROP SUBSCRIPTION {copy.down.name}")
    copy.until(lambda: copy.ended)
    assert isinstance(copy.ended[0], CheckFailed)
    assert f"subscription {copy.down.name} was dropped" in copy.ended[0].message
    assert f"subscription {copy.down.name} was dropped" in copy.status().reason


def test_the_status_of_a_validation_that_does_not_run_is_incomplete(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start("public.t")
    assert copy.fence().exit_code == 0
    assert _validate(copy, "status", "v") == _validate(copy, "status") == 0
    copy.stop()
    # As after a kill: the state says that it runs, and no process has the lock.
    copy.down.execute("UPDATE trueup.validation SET state = 'running'")
    copy.up.execute("INSERT INTO t VALUES (1)")
    assert _validate(copy, "status", "v") == _validate(copy, "status") == 2
    copy.down.execute("UPDATE trueup.validation SET state = 'stopped'")
    assert _validate(copy, "status", "v") == 2
    copy.go_on()
    assert copy.fence().exit_code == 0
    assert _validate(copy, "status", "v") == 0


def test_delete_of_the_last_validation_leaves_nothing(copy: Copy, tmp_path: Path) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.create("public.t", syncer="lag:1")
    copy.name = "w"
    copy.create("public.t", syncer="lag:1")
    copy.validation.delete()
    assert copy.down.execute("SELECT to_regnamespace('trueup') IS NOT NULL") == [(True,)]
    copy.name = "v"
    copy.down.execute("CREATE TABLE trueup.other ()")
    copy.validation.delete()
    assert copy.down.execute(
        "SELECT array_agg(relname::text) FROM pg_class WHERE relnamespace = 'trueup'::regnamespace"
    ) == [(["other"],)]
    copy.down.execute("DROP TABLE trueup.other")
    copy.create("public.t", syncer="lag:1")
    copy.validation.delete()
    assert copy.down.execute("SELECT to_regnamespace('trueup') IS NOT NULL") == [(False,)]


def test_a_cut_over_with_wrong_rows_before_it_ends(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.spoil("t", "IF NEW.id IN (2, 3) THEN RETURN NULL; END IF;", "INSERT")
    copy.start("public.t", row_error_delay=1.0, scrub_share=0.5)
    copy.up.execute("INSERT INTO t VALUES (1), (2), (3)")
    copy.until(lambda: copy.status().total("failed") == 2)
    # A position that has not been read when the validation gets to know it: it stops exactly there.
    [(cutover,)] = copy.up.execute("SELECT (pg_current_wal_lsn() + 200000)::text")
    copy.validation.update(cutover=cutover)

    def has_stopped_there() -> bool:
        copy.up.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 16000))")
        return lsn_number(copy.status().position or "0/0") == lsn_number(cutover)

    copy.until(has_stopped_there)
    # Rows that change after the cut-over: one that is pending, and one that is not part of it.
    copy.up.execute("INSERT INTO t VALUES (4); UPDATE t SET n = 1 WHERE id = 3")
    copy.down.execute("DELETE FROM t WHERE id = 4")
    copy.until(lambda: copy.ended)
    assert "all changes before the cut-over position" in copy.ended[0]
    assert sorted((error.key, error.kind) for error in copy.errors()) == [(("2",), "missing"), (("3",), "missing")]
    status = copy.status()
    assert (status.total("inserts"), status.total("updates"), status.total("pending")) == (3, 0, 0)
    assert (status.is_finished, status.exit_code) == (True, 1)
    # A validation that has ended at its cut-over is complete.
    copy.validation.resolve(None)
    assert copy.status().exit_code == 0


def test_a_scrub_does_not_suspect_known_errors_again(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO t SELECT i FROM generate_series(1, 100) i")
    copy.replicate()
    copy.down.execute("DELETE FROM t WHERE id IN (7, 8, 9); INSERT INTO t VALUES (1000)")
    copy.start("public.t", scrub_share=0.9, scrub_rows=30)
    copy.until(lambda: len(copy.errors()) == 4 and not copy.status().total("pending"))
    ids = {error.key[0]: error.id for error in copy.errors()}
    assert copy.validation.ignore([ids["8"], ids["9"]]) == 2
    passes = copy.status().total("scrub_passes")
    seen: list[int] = []

    def has_scrubbed(count: int) -> bool:
        seen.append(copy.status().total("pending"))
        return copy.status().total("scrub_passes") > passes + count

    copy.until(lambda: has_scrubbed(5))
    assert set(seen) == {0}
    # Rows that become right are noticed, also if their errors are ignored; rows that change are shown as they are.
    copy.up.execute("UPDATE t SET n = 5 WHERE id = 7; UPDATE t SET n = 6 WHERE id = 9")
    copy.down.execute("INSERT INTO t VALUES (8); DELETE FROM t WHERE id = 1000")
    copy.until(lambda: {error.key[0] for error in copy.errors("resolved")} == {"8", "1000"})
    copy.until(lambda: [(error.source_row or {})["n"] for error in copy.errors()] == ["5"])
    copy.until(lambda: [(error.source_row or {})["n"] for error in copy.errors("ignored")] == ["6"])
    # A row that is wrong again after it was right is a new error.
    copy.down.execute("DELETE FROM t WHERE id = 8")
    copy.until(lambda: {error.key[0] for error in copy.errors()} == {"7", "8"})


def test_a_start_after_a_stop_catches_up_before_the_limit_of_retained_log(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n text)")
    copy.replicate()
    copy.start("public.t", max_retained_wal=1_000_000)
    assert copy.fence().exit_code == 0
    copy.stop()
    copy.up.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 3000) i")
    copy.until(lambda: copy.down.execute("SELECT count(*) FROM t") == [(3000,)])
    copy.go_on()
    assert copy.fence().exit_code == 0
    assert copy.status().total("inserts") == 3000
    assert copy.ended == []


def test_a_session_that_is_left_in_the_middle_of_a_query(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal can leave the session of the meta database so: Ctrl-C ends the validation, an error opens it again."""
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start("public.t")
    assert copy.fence().exit_code == 0
    copy.stop()
    checkpoint, left = Validator.checkpoint, [KeyboardInterrupt(), NodeError("the connection was lost", node="n2")]

    def failing(self: Validator, *arguments: Any) -> None:
        if left:
            self.sessions.meta.connection.pgconn.send_query(b"SELECT pg_sleep(2)")
            raise left.pop(0)
        checkpoint(self, *arguments)

    monkeypatch.setattr(Validator, "checkpoint", failing)
    copy.up.execute("INSERT INTO t VALUES (1, 1)")
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        copy.validation.start(engine="local", log=copy.messages.append)
    assert len(left) == 1
    # Its session has the lock of the validation until it ends, a moment after the query.
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(2)'"
    copy.until(lambda: copy.down.execute(sleeping) == [(0,)])
    copy.go_on()
    copy.until(lambda: not left)
    assert copy.fence().exit_code == 0
    copy.stop()
