"""Open a node by its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trueup.config.address import OTHER_KINDS, POSTGRESQL
from trueup.config.model import Node
from trueup.errors import ConfigError
from trueup.nodes.base import ComparedNode
from trueup.nodes.postgres import Options, PostgresNode
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trueup.nodes.frame import FrameSource


@dataclass(frozen=True)
class Opening:
    """What nodes are opened with: options, frames of the program, and the session, which starts when it is needed."""

    table: str
    options: Options
    application: str
    session: Callable[[], SparkSession]
    frames: Mapping[str, DataFrame]
    sources: Mapping[str, FrameSource] = field(default_factory=dict)
    # Results of probes, which all frames of the session share.
    probed: dict[bytes, Mapping[ValueClass, Sequence[str]]] = field(default_factory=dict)
    # Whether files are read without Spark.
    is_local: bool = False


def open_node(node: Node, opening: Opening) -> ComparedNode:
    """Return a node of any kind; raise ConfigError if its kind is not supported."""
    if node.kind == POSTGRESQL:
        return PostgresNode(node, opening.table, opening.options, opening.application)
    if opening.options.query:
        message = f"node {node.name}: a query can be compared of PostgreSQL nodes only"
        raise ConfigError(message, cure="use a view, or a frame of Spark")
    if opening.options.columns and node.kind == "mysql":
        message = f"node {node.name}: types of expressions are not known on MySQL"
        raise ConfigError(message, cure="use a view")
    if node.kind == "mysql":
        from trueup.nodes.databases.mysql import MySqlNode

        return MySqlNode(node, opening.table, opening.options.filter)
    if node.kind in ("clickhouse", "chdb"):
        from trueup.nodes.databases.clickhouse import open_clickhouse

        return open_clickhouse(node, opening.table, opening.options.filter, opening.options.columns)
    if opening.is_local:
        return _columnar(node)
    from trueup.nodes.files import PathSource
    from trueup.nodes.frame import FrameNode, GivenFrame
    from trueup.nodes.tables import TableSource

    place = _place(node)
    source: FrameSource
    if node.name in opening.sources:
        source = opening.sources[node.name]
    elif node.kind == "frame":
        if node.name not in opening.frames:
            raise ConfigError("the address frame: needs a frame of a Python program", cure="use trueup.diff in Python")
        source = GivenFrame(opening.frames[node.name])
    elif node.kind == "iceberg":
        from trueup.nodes.iceberg import source_of

        source = source_of(place, opening.session())
    elif node.kind == "spark":
        source = TableSource(node.kind, place)
    elif node.kind == "delta":
        from trueup.nodes.delta import DeltaSource

        source = DeltaSource(place)
    else:
        source = PathSource(node.kind, place)
    return FrameNode(
        node.name,
        node.kind,
        source,
        opening.session(),
        filter=opening.options.filter,
        expressions=opening.options.columns,
        probed=opening.probed,
    )


def _place(node: Node) -> str:
    """Return an address without its kind."""
    return node.conninfo[len(next(start for start in OTHER_KINDS if node.conninfo.startswith(start))) :]


def _columnar(node: Node) -> ComparedNode:
    from trueup.nodes.columnar import ColumnarNode
    from trueup.nodes.delta import DeltaSource
    from trueup.nodes.files import PathSource

    source = DeltaSource(_place(node)) if node.kind == "delta" else PathSource(node.kind, _place(node))
    return ColumnarNode(node.name, node.kind, source)
