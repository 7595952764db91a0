"""Checks before the first start that each option names a table and columns of the validation.

An option with a typo would have no effect, and rows would be compared in another way than the user expects.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from trueup.config.model import Node
from trueup.config.settings import ExpressionSettings
from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.expressions import Examined, Expression, examine
from trueup.db.names import display_name
from trueup.errors import CheckFailed
from trueup.verbs.validate.routes import Route, option_tables
from trueup.verbs.validate.settings import Settings


def refuse_wrong_options(
    source: Connection, target: Connection, node: Node, settings: Settings, routes: Sequence[Route]
) -> None:
    """Raise CheckFailed with all options that name an unknown table or column, or have a wrong filter."""
    selected = {route.source for route in routes}
    known = selected | {(schema, "*") for schema, _ in selected}
    problems = [
        f"{option}: table {display_name(*table)} is not part of this validation"
        for option, table in option_tables(settings)
        if table not in known
    ]
    for route in routes:
        if route.filter or route.excluded or route.columns or route.constants:
            problems += _column_problems(source, target, settings, route)
            reason = examine_filter(source, node, settings, route).reason
            problems += [f"node {node.name}: {reason}"] if reason else []
    if problems:
        raise CheckFailed(problems, cure="check the names in these options; nothing was started")


def _column_problems(source: Connection, target: Connection, settings: Settings, route: Route) -> list[str]:
    tables = catalog.read_table(source, *route.source), catalog.read_table(target, *route.target)
    if tables[0] is None or tables[1] is None:
        # The plan of the table reports it.
        return []
    source_names, target_names = ({column.name for column in table.columns} for table in tables if table is not None)
    on_source = f"{route.name} on {settings.source}"
    on_target = f"{display_name(*route.target)} on {settings.target}"
    wrong = [
        *(("--exclude-columns", name, on_source) for name in sorted(route.excluded - source_names - target_names)),
        *(("--map-columns", name, on_source) for name in route.columns if name not in source_names),
        *(("--map-columns", name, on_target) for name in route.columns.values() if name not in target_names),
        *(("--constant", name, on_target) for name in route.constants if name not in target_names),
    ]
    return [f"{option}: column {name} does not exist in {place}" for option, name, place in wrong]


def examine_filter(source: Connection, node: Node, settings: Settings, route: Route) -> Examined:
    """Return why the server rejects the filter of a route or a function in it is not allowed, and its guard."""
    if not route.filter:
        return Examined(None)
    allowed = ExpressionSettings(", ".join(settings.allow_functions), ", ".join(settings.allow_extensions))
    table = sql.Identifier(*route.source)
    expression = Expression(f"--filter of {route.name}", route.filter, table, table=table.as_string())
    return examine(source, node, expression, allowed)
