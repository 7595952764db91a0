"""Check the SQL conditions and the values of a plan on the nodes, before a key is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from psycopg import sql

from trueup.config.settings import ExpressionSettings
from trueup.db import catalog
from trueup.db.catalog import Column
from trueup.db.expressions import CURE, Expression, refusal, type_of
from trueup.db.names import display_name
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed, QueryError
from trueup.verbs.repair.conditions import name_of_key
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.plan import Plan, Value

_BUILT_IN = sql.Identifier("pg_catalog").as_string(None) + "."
_WITH_LENGTH = re.compile(r"character(?: varying)?\((\d+)\)")


def check_plan(controls: Sequence[Control], layout: Layout, plan: Plan, allowed: ExpressionSettings) -> None:
    """Raise CheckFailed, with the rules and rows of the plan, for conditions and values that cannot be used."""
    nodes = [control.node.name for control in controls]
    table = display_name(layout.spec.schema, layout.spec.table)
    # The first node evaluates the conditions.
    conditions = [*_wrong_conditions(controls[0], nodes, layout, plan, allowed)]
    if conditions:
        raise CheckFailed(conditions, cure=CURE, node=nodes[0], table=table)
    for control in controls:
        values = [*_wrong_values(control, layout, plan)]
        if values:
            cure = "write values of the plan as the types of their columns require"
            raise CheckFailed(values, cure=cure, node=control.node.name, table=table)


def _wrong_conditions(
    control: Control, nodes: Sequence[str], layout: Layout, plan: Plan, allowed: ExpressionSettings
) -> Iterator[str]:
    source = _source(nodes, layout)
    for rule in plan.rules:
        if not rule.where:
            continue
        expression = Expression(f"{rule.place}: where", rule.where, source)
        reason = refusal(control.connection, control.node, expression, allowed)
        if reason:
            yield reason
        elif (kind := type_of(control.connection, expression)) != "boolean":
            yield f"{expression.what}: the condition has the type {kind}, and must be boolean: {rule.where}"


def _source(nodes: Sequence[str], layout: Layout) -> sql.Composed:
    """Return a FROM clause with the names and types that a condition sees."""
    spec, carried = layout.spec, [column.name for column in layout.carried]
    columns = {**dict.fromkeys(nodes, carried), name_of_key(nodes): list(spec.key_names)}
    return sql.SQL(", ").join(
        sql.SQL("(SELECT {} FROM {}) AS {}").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.Identifier(spec.schema, spec.table),
            sql.Identifier(name),
        )
        for name, names in columns.items()
    )


def _wrong_values(control: Control, layout: Layout, plan: Plan) -> Iterator[str]:
    table = catalog.read_table(control.connection, layout.spec.schema, layout.spec.table)
    if table is None:
        return
    checked: dict[tuple[str, str | None], str] = {}
    for value in plan.values(layout.spec.key_names):
        column = table.column(value.column)
        if column is None:
            continue
        if (value.column, value.text) not in checked:
            checked[value.column, value.text] = _problem(control, column, value)
        problem = checked[value.column, value.text]
        if problem:
            yield f"{value.place}: {value.column}: {problem}"


def _problem(control: Control, column: Column, value: Value) -> str:
    if value.text is None:
        return "the column is NOT NULL" if column.not_null else ""
    most = _WITH_LENGTH.fullmatch(column.base_type)
    if most and len(value.text.rstrip(" ")) > int(most[1]):
        return f"the value is too long for type {column.base_type}"
    kind = sql.Identifier(column.base_schema, column.base_name).as_string(None)
    # A literal of another type could run code of its owner.
    if not kind.startswith(_BUILT_IN):
        return ""
    literal = sql.SQL("SELECT {}::{}").format(sql.Literal(value.text), sql.SQL(kind))
    try:
        control.connection.execute(literal)
    except Exception as error:
        failure = error_from_server(error, control.node)
        if not isinstance(failure, QueryError):
            raise failure from None
        return failure.message
    return ""
