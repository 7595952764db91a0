"""Prove a table of a sink by digests: a comparison of the source, as the tube reads it, with the table of the sink."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from psycopg import sql

from trueup.capture.triggers.shape import Shape
from trueup.config.model import Node
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.nodes.mapping import CompareMap, NodeMap
from trueup.report.frames import batches
from trueup.report.model import DiffResult
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.sinks.base import StoredTable
from trueup.sinks.columns import SHARD
from trueup.verbs.tube_proof.flight import Flight
from trueup.verbs.tube_proof.model import TableProof
from trueup.verbs.tube_proof.parquet_state import ParquetState

if TYPE_CHECKING:
    from trueup.nodes.frame import FrameSource

_EXAMPLES = 10


class Compare(Protocol):
    """Compares a table, as `trueup diff` across kinds of nodes does."""

    def __call__(
        self,
        table: TableRequest,
        mapping: CompareMap,
        sources: Mapping[str, FrameSource],
        in_flight: Callable[[Collection[KeyValues]], Collection[KeyValues]],
    ) -> DiffResult:
        """Return the result; the queries of the mapping are checked already, keys in flight are no differences."""


@dataclass(frozen=True)
class Comparing:
    """What all tables of a proof are compared with."""

    node: Node
    settings: DiffSettings
    spark: SparkSettings
    compare: Compare


def prove_table(shape: Shape, stored: StoredTable, flight: Flight, comparing: Comparing) -> TableProof:
    """Compare one table with its copy in the sink."""
    source = replace(comparing.node, name="source")
    sink = replace(stored.node, name="sink")
    sources = {}
    if sink.kind == "parquet":
        sources["sink"] = ParquetState(Path(sink.conninfo.removeprefix("parquet:")))
        sink = Node("sink", "frame:")
    shard = (SHARD,) if stored.is_routed else ()
    request = TableRequest(
        table=shape.table,
        nodes=(source, sink),
        settings=comparing.settings,
        spark=comparing.spark,
        columns=tuple(stored.columns),
        key=(*shape.key, *shard),
        # An empty table is delivered completely.
        require_rows=False,
    )
    names = {name: own for name, own in stored.columns.items() if name != own}
    mapping = CompareMap(
        nodes={
            "source": NodeMap(query=source_query(shape, stored)),
            "sink": NodeMap(table=stored.table, columns=names),
        }
    )
    return _proof(shape, comparing.compare(request, mapping, sources, flight.keys), flight)


def source_query(shape: Shape, stored: StoredTable) -> str:
    """Return the query of the rows that the tube delivers, with the columns that the sink stores."""
    others = [name for name in stored.columns if name not in shape.key]
    key = shape.key_sql if stored.has_text_keys else _columns(shape.key)
    selected = [key, *([_columns(others)] if others else [])]
    names = [*shape.key, *others]
    if stored.is_routed:
        selected.append(f"({shape.shard_sql})::int8")
        names.append(SHARD)
    listed = sql.SQL(", ").join(map(sql.Identifier, names)).as_string(None)
    rows = f"SELECT {', '.join(selected)} FROM {shape.relation} r WHERE {shape.condition}"
    return f"SELECT * FROM ({rows}) q({listed})"


def _columns(names: tuple[str, ...] | list[str]) -> str:
    return sql.SQL(", ").join(sql.Identifier("r", name) for name in names).as_string(None)


def _proof(shape: Shape, result: DiffResult, flight: Flight) -> TableProof:
    counts = next(iter(result.pairs.values()))
    incomplete = result.incomplete
    if counts.total and result.verdict == "DIFFER":
        incomplete = (*incomplete, *flight.unfinished())
    examples = []
    if counts.total:
        for batch in batches(result.report):
            examples += [f"{it['kind']} {', '.join(text for _, text in it['key'])}" for it in batch.to_pylist()]
            if len(examples) >= _EXAMPLES:
                break
    return TableProof(
        table=shape.table,
        verdict="INCOMPLETE" if incomplete else result.verdict,
        rows=result.rows.get("source", 0),
        missing=counts.missing,
        changed=counts.changed,
        extra=counts.extra,
        in_flight=counts.in_flight,
        incomplete=incomplete,
        remarks=result.remarks,
        examples=tuple(examples[:_EXAMPLES]),
        report=result.report if counts.total else "",
    )
