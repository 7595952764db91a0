"""Prepare a comparison across kinds: settings that cannot be used, the nodes, the columns; and what to remark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from trueup.config.address import POSTGRESQL
from trueup.engine.session import existing_session
from trueup.errors import ConfigError
from trueup.nodes.base import ComparedNode, Moment, NodeTable, Plan
from trueup.nodes.columnar import ColumnarNode, NotColumnar
from trueup.nodes.kinds import Opening, open_node
from trueup.nodes.plan import Request, plan_columns, renamed
from trueup.nodes.postgres import Options
from trueup.rows.spec import ValueClass
from trueup.verbs.compare.request import CompareRequest, Session

# Kinds of nodes that can be read without Spark; files of these kinds by Arrow.
_COLUMNAR = ("parquet", "delta")
_WITHOUT_SPARK = (POSTGRESQL, "mysql", "clickhouse", "chdb", *_COLUMNAR)


def prepared(
    request: CompareRequest, session: Session, application: str, stack: ExitStack
) -> tuple[list[ComparedNode], Plan, dict[str, NodeTable]]:
    """Return the nodes of a request, what is compared, and their tables; without Spark, if that is possible."""
    reason = _needs_spark(request)
    if not reason:
        with ExitStack() as own:
            try:
                nodes = _open_nodes(request, session, application, own, is_local=True)
                plan, tables = _plan_of(request, nodes)
                for node in nodes:
                    if isinstance(node, ColumnarNode):
                        node.check(plan)
                stack.push(own.pop_all())
                return nodes, plan, tables
            except NotColumnar as error:
                reason = str(error)
    if request.table.spark.engine == "local":
        raise ConfigError(f"--engine local cannot compare these nodes: {reason}", cure="use --engine auto")
    nodes = _open_nodes(request, session, application, stack, is_local=False)
    return nodes, *_plan_of(request, nodes)


def _needs_spark(request: CompareRequest) -> str:
    """Return why a comparison runs on Spark, or an empty text if its nodes can be read without it."""
    table, spark = request.table, request.table.spark
    if spark.engine == "spark" or spark.master or spark.remote:
        return "Spark is configured"
    if request.frames or request.sources:
        return "frames are read by Spark"
    for node in table.nodes:
        own = request.map.node(node.name)
        if node.kind not in _WITHOUT_SPARK:
            return f"node {node.name} is read by Spark"
        if node.kind in _COLUMNAR and (table.filter or own.filter or own.expressions):
            return f"node {node.name} has a filter or an expression in the SQL of Spark"
    # The session of a notebook may have more cores than this machine.
    return "this process has a session of Spark" if spark.engine != "local" and existing_session() else ""


def _open_nodes(
    request: CompareRequest, session: Session, application: str, stack: ExitStack, *, is_local: bool
) -> list[ComparedNode]:
    """Return the nodes of a request, which are closed with the stack."""
    table = request.table
    request.map.check_nodes(table.node_names)
    probed: dict[bytes, Mapping[ValueClass, Sequence[str]]] = {}
    nodes: list[ComparedNode] = []
    for node in table.nodes:
        own = request.map.node(node.name)
        filters = [text for text in (table.filter, own.filter) if text]
        # Each on lines of its own, because it may end with a comment.
        filter = filters[0] if len(filters) == 1 else " AND ".join(f"(\n{text}\n)" for text in filters)
        checked = request.has_checked_queries
        options = Options(table.settings, table.expressions, filter, own.query, own.expressions, checked)
        named = own.table or table.table
        opening = Opening(named, options, application, session, request.frames, request.sources, probed, is_local)
        nodes.append(open_node(node, opening))
        stack.callback(nodes[-1].close)
    return nodes


def _plan_of(request: CompareRequest, nodes: Sequence[ComparedNode]) -> tuple[Plan, dict[str, NodeTable]]:
    """Return what is compared, and the tables of the nodes."""
    table, map = request.table, request.map
    tables = {node.name: renamed(node.describe(), map.node(node.name).columns, node.name) for node in nodes}
    columns = table.columns or map.columns
    excluded = table.exclude_columns or map.exclude_columns
    return plan_columns(tables, Request(columns, excluded, table.key or map.key, map.rules)), tables


def inexact(plan: Plan) -> str:
    """Return why different digests do not mean different rows."""
    names = [column.name for column in plan.columns if not column.is_exact]
    return f"values of {', '.join(names)} that differ in their bytes may be equal in another form"


def remarks_of(plan: Plan, moments: Sequence[Moment], *, is_one_look: bool) -> tuple[str, ...]:
    """Return columns of several types, nodes without a snapshot, and whether blocks were looked at once only."""
    remarks: list[str] = []
    if {moment.kind for moment in moments} == {POSTGRESQL}:
        remarks += [
            f"{column.name} is compared by value: "
            + ", ".join(f"{own.type} on {node}" for node, own in column.on.items())
            for column in plan.columns
            if len({own.type for own in column.on.values()}) > 1
        ]
    remarks += [
        f"{moment.node} was read without a snapshot: rows that changed during the run may be reported or missed"
        for moment in moments
        if not moment.held
    ]
    if is_one_look:
        remarks.append("differing blocks were hashed once: rows that were in flight may be the reason")
    return tuple(remarks)
