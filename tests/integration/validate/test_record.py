"""`--certify`: a MATCH of a diff or check is a certificate, unless the run says less than the validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import psycopg
import pytest

import trueup
from support.fixtures import both_engines
from support.validate import Copy
from trueup.cli.main import run
from trueup.db.names import display_name
from trueup.db.server_identity import ServerPosition, server_position, table_identity
from trueup.errors import ConfigError
from trueup.rows.keys import chain
from trueup.rows.proven import ComparedTable
from trueup.rows.spec import TableSpec
from trueup.verbs.validate.proving.record import Recorder

ROWS = 2000
# Nothing but a run of diff or check certifies.
SETTINGS = {"both_sides": True, "scrub_share": 0.0}


def _begin(copy: Copy, **settings: Any) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    copy.up.execute(f"INSERT INTO t SELECT i, i, 'x' FROM generate_series(1, {ROWS}) i; ANALYZE t")
    copy.replicate()
    copy.start("public.t", **{**SETTINGS, **settings})


def _run(copy: Copy, verb: Literal["diff", "check"] = "check", **options: Any) -> trueup.DiffResult:
    compare = trueup.check if verb == "check" else trueup.diff
    given = {
        "certify": "v",
        "engine": "local",
        "recheck_wait": 0,
        "block_size": 100,
        "override_block_size": True,
        **options,
    }
    return compare("t", nodes={"n1": copy.up.uri, "n2": copy.down.uri}, **given)


def _certificate(copy: Copy) -> Any:
    return copy.status().tables[0].certificate


def test_a_match_is_a_certificate(copy: Copy) -> None:
    _begin(copy)
    assert copy.validation.prove().verdict == "INCOMPLETE"
    first = _run(copy)
    assert (first.verdict, first.certified) == ("MATCH", {"validation": "v", "reason": ""})
    proof = copy.validation.prove()
    assert proof.verdict == "MATCH", proof
    assert _certificate(copy)["how"] == "check"
    assert proof.tables[0].oldest_block_at is not None
    # Only what was touched since is read; the next certificate counts from its own time.
    for low in (300, 900):
        copy.up.execute(f"UPDATE t SET n = -1 WHERE id BETWEEN {low} AND {low + 10}")
        copy.until(lambda: copy.validation.prove().verdict == "MATCH")
        since = _run(copy, certify="", since_proof="v")
        assert (since.verdict, since.since_proof["reason"]) == ("MATCH", ""), since.since_proof
        assert 0 < since.rows_checked <= 400
        again = _run(copy, "diff")
        assert again.certified["reason"] == "", again
        assert _run(copy, certify="", since_proof="v").rows_checked == 0
    assert _certificate(copy)["how"] == "diff"
    sums = copy.down.execute("SELECT sum(rows), bool_or(is_touched) FROM trueup.certificate_block")
    assert sums == [(ROWS, False)]


def test_what_voids_is_lifted_and_a_difference_is_not_recorded(copy: Copy) -> None:
    _begin(copy)
    copy.down.execute("UPDATE t SET n = 0 WHERE id = 7")
    found = _run(copy, "diff")
    assert (found.verdict, found.certified) == ("DIFFER", {})
    assert _certificate(copy) is None
    copy.down.execute("UPDATE t SET n = 7 WHERE id = 7")
    assert not _run(copy).certified["reason"]
    copy.up.execute(f"ALTER PUBLICATION {copy.slot} DROP TABLE t")
    copy.until(lambda: _certificate(copy)["void"])
    copy.until(lambda: not _run(copy).certified["reason"])
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")
    # The gap of a lost slot ends with the certificate of all tables.
    copy.stop()
    copy.up.execute(f"SELECT pg_drop_replication_slot('{copy.slot}')")
    with pytest.raises(AssertionError):
        copy.go_on()
    with pytest.raises(ConfigError, match="it has lost changes"):
        _run(copy)
    copy.go_on()
    assert copy.validation.prove().verdict == "INCOMPLETE"
    assert not _run(copy).certified["reason"]
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")


def test_runs_that_say_less_than_the_validation(copy: Copy, capfd: pytest.CaptureFixture[str]) -> None:
    _begin(copy)
    copy.both("CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE heap (id int)")
    assert "other columns" in _run(copy, columns=("id", "n")).certified["reason"]
    assert "other rules" in _run(copy, filter="id > 0").certified["reason"]
    assert "other rules" in _run(copy, numeric="representation").certified["reason"]
    nodes = {"n1": copy.up.uri, "n2": copy.down.uri}
    for table, reason in (("other", "is not a table of validation v"), ("heap", "only a run over the key")):
        found = trueup.check(table, nodes=nodes, engine="local", certify="v")
        assert reason in found.certified["reason"]
    swapped = trueup.check("t", nodes={"n1": copy.down.uri, "n2": copy.up.uri}, engine="local", certify="v")
    assert "another server" in swapped.certified["reason"]
    assert _certificate(copy) is None
    with pytest.raises(ConfigError, match="cannot be combined"):
        _run(copy, since_proof="v")
    arguments = [text for node, uri in nodes.items() for text in ("--node", f"{node}={uri}")]
    capfd.readouterr()
    assert run(["check", "t", "--certify", "v", "--engine", "local", "--gentle", *arguments]) == 0
    assert "recorded as certificate of the validation v" in capfd.readouterr().out
    assert run(["check", "--schema", "public", "--certify", "v", "--engine", "local", *arguments]) == 0
    shown = capfd.readouterr().out
    assert "1 table: recorded as certificate of the validation v" in shown
    assert "1 table: no certificate was recorded: it is not a table of validation v" in shown
    assert _certificate(copy)["how"] == "check"


class _Racing:
    """A run that has begun: what happens before `record` happens while it reads rows."""

    def __init__(self, copy: Copy, spec: TableSpec) -> None:
        self._copy = copy
        self._spec = spec
        self._recording = Recorder(copy.validation.config, "v").begin(spec, chain([("1000",)]))

    def record(self, **server: Any) -> str:
        """Record what a run would that has found all rows equal."""
        tables: dict[str, tuple[ServerPosition, int]] = {}
        for node, database in (("n1", self._copy.up), ("n2", self._copy.down)):
            with psycopg.connect(database.uri, autocommit=True) as session:
                identity = table_identity(session, self._spec.schema, self._spec.table)
                tables[node] = replace(server_position(session), **server), identity.table
        ranges = tuple((block, None) for block in self._recording.blocks)
        return self._recording.record(ComparedTable(self._spec, tables, ranges, "diff"))


def test_what_happens_while_rows_are_compared(copy: Copy) -> None:
    specs: list[TableSpec] = []

    class _Spy(Recorder):
        def begin(self, spec: TableSpec, plan: Any) -> Any:
            specs.append(spec)
            return super().begin(spec, plan)

    _begin(copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trueup.verbs.validate.proving.record.Recorder", _Spy)
        _run(copy)
    (spec,) = specs
    assert display_name(spec.schema, spec.table) == "public.t"
    assert _Racing(copy, spec).record() == ""
    # A standby, or a server that was restored, lacks changes that are judged already.
    assert "standby" in _Racing(copy, spec).record(position=None)
    assert "restored" in _Racing(copy, spec).record(position=1)
    assert "timeline" in _Racing(copy, spec).record(timeline=99)
    racing = _Racing(copy, spec)
    copy.down.execute(f"ALTER PUBLICATION {copy.slot}_t DROP TABLE t")
    copy.until(lambda: _certificate(copy)["void"])
    assert "altered while the rows were compared" in racing.record()
    assert _certificate(copy)["void"]
    copy.until(lambda: _Racing(copy, spec).record() == "")
    racing = _Racing(copy, spec)
    copy.validation.update(float_tolerance=0.5)
    assert "settings" in racing.record()
    copy.validation.update(float_tolerance=0.0)
    racing = _Racing(copy, spec)
    copy.validation.restart(["public.t"])
    assert racing.record()
    copy.until(lambda: copy.status().tables[0].stage == "running" and _Racing(copy, spec).record() == "")
    # Errors that are resolved by hand, without a certificate that could be voided.
    copy.down.execute("UPDATE t SET n = 0 WHERE id = 7")
    copy.until(lambda: copy.validation.count_errors() == 1)
    copy.down.execute("DELETE FROM trueup.certificate")
    racing = _Racing(copy, spec)
    assert copy.validation.resolve(None) == 1
    assert "altered while the rows were compared" in racing.record()
    assert _certificate(copy) is None
    # As it is at the first start, before the first look.
    copy.stop()
    copy.down.execute("UPDATE trueup.validation SET servers = '{}'")
    assert "has not looked at the table and its servers yet" in _Racing(copy, spec).record()


@both_engines
def test_changes_while_rows_are_compared_touch_their_blocks(engine: str, copy: Copy) -> None:
    _begin(copy)
    assert not _run(copy).certified["reason"]
    copy.up.execute("UPDATE t SET n = -1 WHERE id IN (5, 805)")
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")

    class _Writing(Recorder):
        def begin(self, spec: TableSpec, plan: Any) -> Any:
            begun = super().begin(spec, plan)
            copy.up.execute("UPDATE t SET n = -2 WHERE id IN (5, 1505)")
            copy.until(lambda: copy.validation.prove().verdict == "MATCH")
            return begun

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trueup.verbs.validate.proving.record.Recorder", _Writing)
        # A validation that has lost a session says that the command has to be run again.
        copy.until(lambda: not _run(copy).certified["reason"])
    # A block that was touched before and not since is as it was compared.
    touched = copy.down.execute(
        "SELECT i FROM unnest(ARRAY[5, 805, 1505]) i WHERE EXISTS (SELECT FROM trueup.certificate_block"
        " WHERE is_touched AND i >= start_key[1]::int AND i < coalesce(end_key[1]::int, i + 1))"
    )
    assert touched == [(5,), (1505,)]
    assert copy.down.execute("SELECT count(*) FROM trueup.certificate_block WHERE is_touched") == [(2,)]
