"""Every sink with `trueup tube run`: a backfill, changes, deletes, changed keys, TRUNCATE, and exact values."""

from __future__ import annotations

from typing import Any

import pytest

from support.sinks import Rig
from support.tube import TubeDatabase

SINKS = ["postgres", "redis", "search", "parquet", "delta", "chdb"]


def _names(rig: Rig) -> dict[str, Any]:
    return {key[-1]: row["name"] for key, row in rig.stored(rig.things).items()}


@pytest.mark.parametrize("rig", SINKS, indirect=True)
def test_a_sink_follows_its_table(rig: Rig, tube_db: TubeDatabase) -> None:
    tube_db.run(
        "CREATE TABLE things (id bigint PRIMARY KEY, name text, price numeric, seen timestamptz, n text);"
        "INSERT INTO things SELECT g, 'name ' || g, 1.50, '2024-01-01 00:00:00+00' FROM generate_series(1, 300) g"
    )
    tube_db.tube.attach("things", shard=7)
    tube_db.tube.backfill("things")
    sink = rig.open()
    # An embedded database is queried through the sink itself, which the job would close.
    sink.close = lambda: None  # type: ignore[method-assign]

    def run() -> dict[str, Any]:
        assert tube_db.tube.run(sink, until_empty=True).dead_letters == 0
        found = _names(rig)
        rows = tube_db.run("SELECT id::text, name FROM things")
        assert found == {str(key): name for key, name in rows}
        return found

    assert len(run()) == 300
    tube_db.run("UPDATE things SET name = 'new' WHERE id <= 10; DELETE FROM things WHERE id > 290")
    tube_db.run("UPDATE things SET id = 1000 WHERE id = 20; INSERT INTO things VALUES (2000, 'late')")
    assert len(run()) == 291
    # Documents that are left after a TRUNCATE or a lost delete are found by their age.
    tube_db.run("TRUNCATE things; INSERT INTO things VALUES (5, 'five')")
    assert run() == {"5": "five"}
    tube_db.tube.detach("things")
    tube_db.run("DELETE FROM things; INSERT INTO things VALUES (6, 'six')")
    tube_db.tube.attach("things", shard=7)
    tube_db.tube.backfill("things")
    assert run() == {"6": "six"}
    type(sink).close(sink)
