"""The current state of a Parquet sink after the key or the type of a column was changed."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from trueup.sinks.base import Document, Mark, SourceTable
from trueup.sinks.options import Options
from trueup.sinks.parquet import ParquetSink, current_state

MARK = Mark(5, datetime(2026, 1, 1, tzinfo=timezone.utc))


def sink_of(folder: Path, columns: dict[str, str], key: str) -> ParquetSink:
    sink = ParquetSink(folder, Options("parquet", {}))
    sink.setup([SourceTable("public.t", tuple(columns.items()), (key,), routed=False)])
    return sink


def test_another_key_and_another_type(tmp_path: Path) -> None:
    """Documents of the former key are not current; a column of both texts and numbers is text."""
    state = tmp_path / "public.t"
    sink = sink_of(tmp_path, {"id": "integer", "v": "text"}, "id")
    sink.write([Document("public.t", 0, (str(n),), "I", {"id": n, "v": "x"}) for n in (1, 2)], mark=MARK)
    sink = sink_of(tmp_path, {"id": "integer", "v": "integer"}, "id")
    sink.write([Document("public.t", 0, ("2",), "U", {"id": 2, "v": 7})], mark=MARK)
    assert {row["id"]: row["v"] for row in current_state(state).to_pylist()} == {1: "x", 2: "7"}
    # The table is empty when it gets another key: nothing else says that its documents are gone.
    sink = sink_of(tmp_path, {"id": "integer", "k": "text"}, "k")
    assert current_state(state).num_rows == 0
    assert sink.older("public.t", "all", 9, MARK.at, None, 10) == []
    sink.write([Document("public.t", 0, ("a",), "I", {"id": 1, "k": "a"})], mark=MARK)
    assert sink.older("public.t", "all", 9, MARK.at, None, 10) == [(0, ("a",))]
    assert [(row["id"], row["k"]) for row in current_state(state).to_pylist()] == [(1, "a")]
    assert len(list(state.glob("*.parquet"))) == 4
