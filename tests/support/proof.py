"""A tube whose sink has drifted: what a proof finds, for sinks of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from support.tube import TubeDatabase
from trueup.config.settings import SparkSettings
from trueup.sinks import open_sink
from trueup.sinks.base import Document, Mark, SourceTable
from trueup.verbs.tube_proof.model import TubeProof

TABLES = """
    CREATE TABLE things (id bigint PRIMARY KEY, name text, price numeric, seen timestamptz, doc jsonb, f float8);
    INSERT INTO things SELECT n, 'n ' || n, n / 8.0, '2024-01-01'::timestamptz + n * interval '1 s',
                              jsonb_build_object('n', n), n / 3.0::float8 FROM generate_series(1, 40) n;
    INSERT INTO things VALUES (41, NULL, NULL, NULL, NULL, NULL), (42, 'hidden', 0, NULL, NULL, 'NaN');
    CREATE TABLE parts (a text, b numeric, note text, PRIMARY KEY (a, b));
    INSERT INTO parts SELECT 'p' || n, n + 0.10, 'x' FROM generate_series(1, 9) n;
"""


def prove_drift(
    tube_db: TubeDatabase,
    address: str,
    options: Mapping[str, str],
    reports: Path,
    *,
    every_step: bool,
    foreign: Callable[[str], object] | None = None,
) -> None:
    """Deliver two tables, change the sink behind the back of the tube, and prove it: at every step, or at few.

    `foreign` stores a document with a key of the table things, as another program does.
    """
    tube, run = tube_db.tube, tube_db.run
    run(TABLES)
    tube.attach("things", shard=0, predicate="name IS DISTINCT FROM 'hidden'")
    tube.attach("parts", routing="length(a)")
    for table in ("things", "parts"):
        tube.backfill(table)
    local = SparkSettings(engine="local")
    settings = {"recheck": 1, "recheck_wait": 0.0, "report_dir": str(reports)}

    def deliver() -> None:
        tube.run(address, sink_options=options, until_empty=True, spark=local)

    def prove() -> TubeProof:
        return tube.prove(address, sink_options=options, **settings)  # type: ignore[arg-type]

    def counts(proof: TubeProof) -> dict[str, tuple[int, int, int, int]]:
        assert [table.incomplete for table in proof.tables] == [()] * len(proof.tables)
        return {it.table.split(".")[-1]: (it.missing, it.changed, it.extra, it.in_flight) for it in proof.tables}

    deliver()
    if every_step:
        proof = prove()
        assert (proof.verdict, proof.exit_code) == ("MATCH", 0), proof.as_text()
        assert {it.table.split(".")[-1]: it.rows for it in proof.tables} == {"things": 41, "parts": 9}
    # Behind the back of the tube: one document with other values, one is gone, one should not be there.
    info = tube.info()
    assert info is not None
    parts, things = sorted(it.table for it in info.tables)
    sink = open_sink(address, options)
    sink.setup(_sources(tube_db))
    row = {"id": 2, "name": "other", "price": "0.25", "seen": None, "doc": '{"n": 2}', "f": 0.5}
    documents = [
        Document(things, 0, ("2",), "U", row),
        Document(things, 0, ("3",), "D", None),
        Document(things, 0, ("99",), "I", {**row, "id": 99}),
        Document(parts, 9, ("p1", "1.10"), "I", {"a": "p1", "b": "1.10", "note": "moved"}),
    ]
    sink.write(documents, mark=Mark(0, datetime(2020, 1, 1, tzinfo=timezone.utc)))
    sink.close()
    if every_step:
        assert counts(prove()) == {"things": (1, 1, 1, 0), "parts": (0, 0, 1, 0)}
    if foreign:
        foreign("98")
        proof = prove()
        assert counts(proof) == {"things": (1, 1, 2, 0), "parts": (0, 0, 1, 0)}
        assert "extra 98" in proof.as_text()
        tube.touch("things", [98])
        deliver()
    # Touches that are not delivered yet are no differences, and repair the sink when they are.
    run("UPDATE things SET name = 'new' WHERE id IN (2, 5); DELETE FROM things WHERE id = 7")
    # Comparisons print the key as 2.1.
    run("UPDATE parts SET note = 'new' WHERE b = 2.10")
    proof = prove()
    assert (proof.verdict, proof.exit_code) == ("DIFFER", 1), proof.as_text()
    assert counts(proof) == {"things": (1, 0, 1, 3), "parts": (0, 0, 1, 1)}
    assert "missing 3" in proof.as_text()
    deliver()
    if every_step:
        assert counts(prove()) == {"things": (1, 0, 1, 0), "parts": (0, 0, 1, 0)}
    tube.touch("things", [3, 99])
    tube.touch("parts", [("p1", "1.10")], shard=9)
    if every_step:
        assert prove().verdict == "MATCH"
    deliver()
    proof = prove()
    assert (proof.verdict, proof.exit_code) == ("MATCH", 0), proof.as_text()
    assert {it.table.split(".")[-1]: it.rows for it in proof.tables} == {"things": 40, "parts": 9}
    if every_step:
        # Documents that the TRUNCATE will remove are not proven to be wrong.
        run("TRUNCATE parts")
        proof = prove()
        assert (proof.verdict, proof.exit_code) == ("INCOMPLETE", 2), proof.as_text()
        assert "a TRUNCATE is waiting in the tube" in proof.as_text()
        deliver()
        assert prove().verdict == "MATCH"


def _sources(tube_db: TubeDatabase) -> list[SourceTable]:
    from trueup.capture.triggers.shape import Shapes, tables_of

    return tables_of(Shapes(tube_db.tube.session, "t").all())
