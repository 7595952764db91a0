"""What a sync will do: every table and sequence of the source, in order, or by name why one cannot be handled.

Nothing is ever left out without a word: a table is in the plan, is a problem (the plan fails), or is a remark.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from trueup.capture.log.publications import CURE, who_would_stop
from trueup.db import catalog
from trueup.db.connection import Connection, one_row
from trueup.db.foreign_keys import ForeignKey, TableName, in_order, read_foreign_keys
from trueup.db.names import display_name, parse_table_name
from trueup.db.schema import compare_schemas, read_schema
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.rows.encode import column_spec, key_order
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.write.ordered import can_wait
from trueup.rows.write.target import target_of
from trueup.rows.write.triggers import silence_triggers
from trueup.verbs.sync.model import LOG_SCHEMA, ORDERED, REPLICA, STATE_SCHEMA, Plan, Problem, Sequence, SyncTable
from trueup.verbs.sync.plan_target import Begun, check_target

OLDEST = 140000
_SHOWN = 20
_OURS = {"state": STATE_SCHEMA, "log": LOG_SCHEMA}


@dataclass(frozen=True)
class Wanted:
    """What the user asked for: all tables, or those named, without those left out."""

    name: str = "main"
    tables: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    create_schema: bool = False
    # The target holds the rows of this very sync already.
    is_begun: bool = False
    # The target was made by us and has no keys and foreign keys yet: they come after the copy.
    is_bare: bool = False


def make_plan(source: Connection, target: Connection, wanted: Wanted, names: tuple[str, str]) -> Plan:
    """Read both catalogs; `names` are those of the nodes. The plan has problems where it cannot be done."""
    problems: list[Problem] = []
    remarks: list[str] = []
    _check_servers(source, target, names, problems)
    relations = _chosen(source, wanted, remarks)
    pairs = [pair for relation in relations if (pair := _source_table(source, relation, problems, remarks))]
    tables = [table for table, _ in pairs]
    mode = _mode(target)
    made = wanted.create_schema and not wanted.is_begun
    begun = Begun(wanted.is_begun, wanted.is_bare)
    if made:
        _check_free_names(target, tables, problems)
    else:
        tables = [found for table, here in pairs if (found := check_target(target, table, here, mode, problems, begun))]
    keys = _foreign_keys(source if made or wanted.is_bare else target, tables, problems)
    order = in_order([table.name for table in tables], keys)
    if mode == ORDERED:
        _check_cycles(order.groups, keys, problems)
        remarks.append(
            "the role may not set session_replication_role on the target: rows are written in the order of foreign"
            " keys, which is slower"
        )
    sequences = _sequences(source, target, tables, wanted, problems, check=not made)
    _check_large_objects(source, wanted, problems, remarks)
    if not made and not wanted.is_bare:
        remarks += _other_differences(source, target, tables, wanted, names)
    by_name = {table.name: table for table in tables}
    return Plan(
        wanted.name,
        *names,
        tuple(by_name[name] for name in order.tables),
        sequences,
        tuple(keys),
        tuple(tuple(display_name(*name) for name in group) for group in order.cycles),
        mode,
        wanted.create_schema,
        tuple(problems),
        tuple(remarks),
    )


def _check_servers(source: Connection, target: Connection, names: tuple[str, str], problems: list[Problem]) -> None:
    servers = [catalog.read_server(source), catalog.read_server(target)]
    for name, server in zip(names, servers, strict=True):
        if server.version < OLDEST:
            problems.append(Problem(f"node {name}", f"PostgreSQL {server.version // 10000} is too old", "14 or newer"))
        if server.encoding == "SQL_ASCII":
            problems.append(
                Problem(f"node {name}", "the encoding SQL_ASCII says nothing about its characters", "use UTF8")
            )
    for name, node in zip(names, (source, target), strict=True):
        wrong = who_would_stop(node, f"{LOG_SCHEMA}.installation")
        if wrong:
            problems.append(Problem(f"node {name}", wrong, CURE))
    if servers[0].identity == servers[1].identity:
        problems.append(Problem(f"{names[0]} and {names[1]}", "are one and the same database", "name two databases"))
    if servers[0].encoding != servers[1].encoding and servers[1].encoding != "UTF8":
        what = f"its encoding {servers[1].encoding} may not hold what {servers[0].encoding} of {names[0]} holds"
        problems.append(Problem(f"node {names[1]}", what, "make the target's database with the encoding UTF8"))


def _chosen(source: Connection, wanted: Wanted, remarks: list[str]) -> list[dict[str, Any]]:
    """The relations of the source that the user asked for; a name that is not there is an error."""
    theirs = _relations(source)
    named, left = _match(source, theirs, wanted.tables), _match(source, theirs, wanted.leave_out)
    for row in theirs:
        shown = display_name(row["schema"], row["name"])
        if row["oid"] in left:
            remarks.append(f"{shown} is left out, as asked")
    return [row for row in theirs if row["oid"] not in left and (not wanted.tables or row["oid"] in named)]


def _relations(node: Any) -> list[dict[str, Any]]:
    with node.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(load("trueup.verbs.sync", "plan.sql")["relations"], _OURS).fetchall()
    return [row for row in found if not row["is_ours"]]


def other_tables(node: Any, plan: Plan) -> tuple[str, ...]:
    """The tables of a node that are not in the sync, by name."""
    mine = {str(table) for table in plan.tables}
    shown = (display_name(row["schema"], row["name"]) for row in _relations(node))
    return tuple(name for name in shown if name not in mine)


def _match(source: Connection, relations: Many[dict[str, Any]], texts: Many[str]) -> set[int]:
    oids: dict[tuple[str, str], int] = {(row["schema"], row["name"]): row["oid"] for row in relations}
    found: set[int] = set()
    for text in texts:
        schema, table = parse_table_name(text)
        spelled = [(s, t) for s in schema.spellings() for t in table.spellings()]
        hit = next((oids[pair] for pair in spelled if pair in oids), None)
        if hit is None:
            shown = display_name(*spelled[0])
            near = catalog.nearest_table(source, shown)
            raise CheckFailed([f"there is no table {shown}{near}"], cure="check the name")
        found.add(hit)
    return found


def _source_table(
    source: Connection, row: dict[str, Any], problems: list[Problem], remarks: list[str]
) -> tuple[SyncTable, catalog.Table] | None:
    """The table as the source has it; or None, and why is in the problems or remarks."""
    shown = display_name(row["schema"], row["name"])
    if row["extension"]:
        remarks.append(f"{shown} belongs to the extension {row['extension']}, which makes it on the target too")
        return None
    if row["kind"] == "m":
        remarks.append(f"{shown} is a materialized view: REFRESH it on the target")
        return None
    table = catalog.read_table(source, row["schema"], row["name"])
    why = _why_not(row, table)
    if table is None or why:
        what, cure = why or ("it is gone", "run again")
        problems.append(Problem(shown, what, f"{cure}, or leave it out with --leave-out {shown}"))
        return None
    key = table.keys[0].columns
    named = {column.name: column for column in table.columns}
    spec = TableSpec(
        row["schema"],
        row["name"],
        tuple(KeySpec(column_spec(named[name]), key_order([named[name]])) for name in key),
        tuple(column_spec(column) for column in table.columns),
    )
    names = tuple(column.name for column in table.columns)
    found = SyncTable(target_of(spec, table), names, row["oid"], row["kind"] == "p", row["rows"], row["bytes"])
    return found, table


def _why_not(row: dict[str, Any], table: catalog.Table | None) -> tuple[str, str] | None:
    """Why a table cannot be captured and copied without the danger of losing a row; and the cure."""
    if row["kind"] == "f":
        return "it is a foreign table: its rows are elsewhere", "sync the database that holds them"
    if row["foreign_parts"]:
        return f"its partition {row['foreign_parts'][0]} is a foreign table", "detach that partition"
    if row["unlogged"]:
        return f"{row['unlogged'][0]} is unlogged: a crash empties it unseen", "ALTER TABLE … SET LOGGED"
    if row["inherits"]:
        return "it inherits from another table: statements on that one would go unseen", "use partitions"
    if row["is_inherited"]:
        return "other tables inherit from it: its key does not name one row", "use partitions"
    if row["secured"]:
        return "row security hides rows of it from this role", "use a role with BYPASSRLS, or the owner"
    if not row["is_owner"]:
        return f"only its owner {row['owner']} can put triggers on it that always fire", "use the owner's role"
    if row["is_subscribed"]:
        return "it is filled by a subscription, which fires no triggers for statements", "sync from the publisher"
    if table is None or not table.keys:
        return "it has no key: changed rows cannot be named", "a primary key, or a unique index over NOT NULL columns"
    unreadable = [column.name for column in table.columns if not column.readable]
    if unreadable or not table.usage:
        return f"the role may not SELECT {', '.join(unreadable) or 'from its schema'}", "grant it"
    return None


def _mode(target: Connection) -> str:
    with target.transaction(force_rollback=True):
        return REPLICA if silence_triggers(target) else ORDERED


def _check_free_names(target: Connection, tables: Many[SyncTable], problems: list[Problem]) -> None:
    """Where trueup makes the schema there must be nothing of that name yet."""
    for table in tables:
        if catalog.read_table(target, *table.name) is not None:
            problems.append(
                Problem(str(table), "it is there on the target already", "drop it there, or do without --create-schema")
            )


def _foreign_keys(node: Any, tables: Many[SyncTable], problems: list[Problem]) -> list[ForeignKey]:
    """The foreign keys between the tables; those that cross the border of the sync are problems."""
    inside: set[TableName] = {table.name for table in tables}
    blamed = {problem.where for problem in problems}
    keys: list[ForeignKey] = []
    for key in read_foreign_keys(node, inside):
        child, parent = display_name(*key.child), display_name(*key.parent)
        if key.child in inside and key.parent in inside:
            keys.append(key)
        elif key.child in inside and parent not in blamed:
            what = f"its foreign key {key.name} refers to {parent}, which is not in the sync"
            problems.append(Problem(child, what, f"add {parent}, or leave {child} out"))
        elif key.parent in inside and child not in blamed:
            what = f"its foreign key {key.name} refers to {parent}, whose rows the sync replaces"
            problems.append(Problem(child, what, f"add {child}, or drop the foreign key on the target"))
    return keys


def _check_cycles(groups: Many[tuple[TableName, ...]], keys: Many[ForeignKey], problems: list[Problem]) -> None:
    """In foreign-key order a cycle must have a link that can wait: one that is deferrable, or may be NULL meanwhile."""
    for group in groups:
        fixed = [key for key in keys if key.child in group and key.parent in group and not can_wait(key)]
        if len(group) > 1 and in_order(group, fixed).cycles:
            shown = " and ".join(display_name(*name) for name in group)
            links = ", ".join(str(key) for key in fixed)
            cure = (
                "GRANT SET ON PARAMETER session_replication_role to the role on the target (PostgreSQL 15 or newer), or"
                " make one of the foreign keys DEFERRABLE"
            )
            problems.append(
                Problem(shown, f"they refer to one another by foreign keys that cannot wait: {links}", cure)
            )


def _sequences(
    source: Connection,
    target: Connection,
    tables: Many[SyncTable],
    wanted: Wanted,
    problems: list[Problem],
    *,
    check: bool,
) -> tuple[Sequence, ...]:
    """All sequences of the source; where tables were named, those that they own or take their defaults from."""
    ours = {table.oid for table in tables}
    chosen = []
    there = {(row["schema"], row["name"]): row for row in _read_sequences(target)}
    for row in _read_sequences(source):
        if wanted.tables and not ours & set(row["users"] or ()):
            continue
        found = Sequence(row["schema"], row["name"], row["owner"], row["made"])
        chosen.append(found)
        if not row["may_read"]:
            problems.append(Problem(f"sequence {found}", "the role may not read it on the source", "GRANT SELECT"))
        other = there.get((found.schema, found.name))
        if not check:
            continue
        if other is None:
            problems.append(Problem(f"sequence {found}", "it is not there on the target", "make it there"))
        elif other["made"] != row["made"]:
            what = f"it differs: {row['made']} on the source, {other['made']} on the target"
            problems.append(Problem(f"sequence {found}", what, "ALTER SEQUENCE on the target"))
        elif not other["may_write"]:
            problems.append(Problem(f"sequence {found}", "the role may not set it on the target", "GRANT UPDATE"))
    return tuple(chosen)


def _read_sequences(node: Any) -> list[dict[str, Any]]:
    with node.cursor(row_factory=dict_row) as cursor:
        found: list[dict[str, Any]] = cursor.execute(
            load("trueup.verbs.sync", "plan.sql")["sequences"], _OURS
        ).fetchall()
    return found


def _other_differences(
    source: Connection, target: Connection, tables: Many[SyncTable], wanted: Wanted, names: tuple[str, str]
) -> list[str]:
    """What else is not the same: no rows are lost by it, but the gate of a switchover wants it the same."""
    chosen = {table.name for table in tables} if wanted.tables else None
    sides = {name: read_schema(node, tables=chosen) for name, node in zip(names, (source, target), strict=True)}
    found = [
        f"the schemas differ: {each.kind} {each.schema + '.' if each.schema else ''}{each.name} {each.how}"
        + (f" on {', '.join(each.nodes)}" if each.how != "changed" else "")
        for each in compare_schemas(sides)
        # Tables and columns are problems, by name.
        if each.kind not in ("table", "column")
    ]
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], *([f"and {more} more differences: trueup schema-diff"] if more > 0 else [])]


def _check_large_objects(source: Connection, wanted: Wanted, problems: list[Problem], remarks: list[str]) -> None:
    row = one_row(source.execute(load("trueup.verbs.sync", "plan.sql")["large_objects"]))
    if not row[0]:
        return
    what = f"{row[0]:,} large objects, which have no triggers, are not synced"
    if wanted.tables:
        remarks.append(what)
    else:
        cure = "move them into bytea columns (lo_get), or carry them over by hand and name the tables with --tables"
        problems.append(Problem("large objects", what, cure))
