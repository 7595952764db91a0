"""Changes of definitions that change values of rows although no row is written, and that both catalogs show.

A column that was dropped on the source and added again has lost its values there, and the expression of a generated
column decides what the target computes. Such a table is set aside: its rows would differ, and rounds would not say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.db.connection import Connection
from trueup.db.meaning import without_equal_meaning
from trueup.db.names import display_part
from trueup.db.schema import compare_schemas, read_schema
from trueup.verbs.sync import members, state
from trueup.verbs.sync.aside import SAME
from trueup.verbs.sync.members import Member
from trueup.verbs.sync.model import Problem, SyncTable


def differing(
    source: Connection, target: Connection, known: Mapping[int, Member], tables: Sequence[SyncTable]
) -> list[Problem]:
    """Return the columns of tables in step whose values differ although both databases define them alike."""
    again = "column {} was dropped and added again on the source, and the target has its former values"
    problems = [
        Problem(str(table), again.format(name), SAME)
        for table, names in members.added_again(source, target, known, tables)
        for name in names
    ]
    named = {problem.where for problem in problems}
    expression = "the expression of the generated column {} differs"
    return problems + [
        Problem(str(table), expression.format(name), SAME)
        for table, names in _other_expressions(source, target, [table for table in tables if str(table) not in named])
        for name in names
    ]


def _other_expressions(
    source: Connection, target: Connection, tables: Sequence[SyncTable]
) -> list[tuple[SyncTable, list[str]]]:
    """Return the generated columns whose expressions differ by their meaning: versions print equal ones differently."""
    on_source = _expressions(source, [table.oid for table in tables])
    on_target = _expressions(target, [table.target_oid for table in tables])
    found: list[tuple[SyncTable, list[str]]] = []
    for table in tables:
        texts, others = on_source.get(table.oid, {}), on_target.get(table.target_oid, {})
        names = [name for name in texts if name in others and texts[name] != others[name]]
        if names and (names := _of_other_meaning(source, target, table, names)):
            found.append((table, names))
    return found


def _expressions(connection: Connection, oids: list[int]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for oid, name, text in connection.execute(state.statement("expressions"), {"oids": oids}).fetchall():
        found.setdefault(oid, {})[name] = text
    return found


def _of_other_meaning(source: Connection, target: Connection, table: SyncTable, names: list[str]) -> list[str]:
    schemas = {
        side: read_schema(connection, tables={table.name})
        for side, connection in (("the source", source), ("the target", target))
    }
    here, there = schemas["the target"], schemas["the source"]
    differences = without_equal_meaning(target, compare_schemas(schemas), here, there)
    if source.info.server_version > target.info.server_version:
        # The older server does not know all of the syntax that the newer one prints.
        differences = without_equal_meaning(source, differences, there, here, is_in_use=True)
    differing = {
        (each.schema, each.name) for each in differences if each.kind == "column" and "generated" in each.facts
    }
    schema, shown = table.spec.schema, display_part(table.spec.table)
    return [name for name in names if (schema, f"{shown}.{display_part(name)}") in differing]
