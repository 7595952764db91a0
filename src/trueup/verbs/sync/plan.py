"""The plan of a sync: every table and sequence of the source, in order, or why one cannot be handled.

No table is skipped silently: each one is in the plan, is a problem (the plan fails), or is a remark.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Sequence as Many
from typing import Any

from psycopg.rows import dict_row

from trueup.capture.log.publications import CURE, all_tables_problem
from trueup.db import catalog
from trueup.db.connection import Connection, Cursor
from trueup.db.foreign_keys import TableName, in_order
from trueup.db.names import display_name
from trueup.db.patterns import parse_patterns
from trueup.db.sequences import Sequence
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.rows.encode import column_spec, key_order, row_id_columns
from trueup.rows.probe import same_row_ids
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.write.target import target_of
from trueup.verbs.sync.model import (
    LOG_SCHEMA,
    ORDERED,
    STATE_SCHEMA,
    Plan,
    Problem,
    SyncTable,
)
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.target_schema.features import check_values
from trueup.verbs.sync.target_schema.left_out import find_left_out
from trueup.verbs.sync.target_schema.not_copied import remarks_on
from trueup.verbs.sync.target_schema.plan_keys import (
    SOURCE_KEY_CURE,
    check_cycles,
    check_keyless_parents,
    keys_from_outside,
    mode_of,
    read_keys,
    way_back_notes,
)
from trueup.verbs.sync.target_schema.plan_notes import (
    check_large_objects,
    disabled_note,
    other_differences,
    view_notes,
)
from trueup.verbs.sync.target_schema.plan_schema import check_schema_creation, is_superuser
from trueup.verbs.sync.target_schema.plan_target import TargetState, check_targets

OLDEST = 140000
_GONE = ("it was dropped a moment ago", "run the command again")
# Bytes of a keyless table from which on the plan names what each round costs.
LARGE_KEYLESS = 64 * 1024 * 1024
_OURS = {"state": STATE_SCHEMA, "log": LOG_SCHEMA}


def make_plan(
    source: Connection,
    target: Connection,
    scope: Scope,
    names: tuple[str, str],
    progress: TargetState = TargetState(),  # noqa: B008 - frozen
) -> Plan:
    """Read both catalogs and return the plan, with its problems; `names` are those of the two nodes."""
    problems: list[Problem] = []
    remarks: list[str] = []
    _check_servers(source, target, names, problems, remarks)
    relations, outside = _chosen(source, scope, remarks, is_started=progress.is_filled)
    read = catalog.read_tables(source, [(row["schema"], row["name"]) for row in relations if _is_read(row)])
    sizes = _sizes(source, [row["oid"] for row in relations if _is_read(row)])
    candidates = [
        candidate for relation in relations if (candidate := _source_table(relation, read, sizes, problems, remarks))
    ]
    remarks += view_notes(relations, scope)
    tables = [table for table, _ in candidates]
    mode = mode_of(target)
    makes_schema = scope.create_schema and not progress.is_filled
    # Tables that cannot be added to the sync.
    refused = {row["oid"]: (row["schema"], row["name"]) for row in outside if _is_read(row) and _is_refused(row)}
    roles: tuple[str, ...] = ()
    if makes_schema:
        left_out = find_left_out(source, [row["oid"] for row in outside], refused)
        roles = check_schema_creation(source, target, scope, tables, left_out, mode, problems, remarks)
    else:
        tables = check_targets(target, candidates, mode, problems, progress)
    _check_keyless(source, target, tables, problems, remarks)
    if not progress.is_filled:
        check_values(source, target, tables, problems)
    if makes_schema or progress.is_bare:
        # trueup makes the tables of the target, which has no others.
        keys = read_keys(source, tables, refused.values(), problems)
    else:
        keys = read_keys(target, tables, refused.values(), problems)
        keys += keys_from_outside(target, tables, problems, can_check=progress.is_filled and mode != ORDERED)
    if not progress.is_brief:
        remarks += way_back_notes(source, tables, names)
    order = in_order([table.name for table in tables], keys)
    if mode == ORDERED:
        check_cycles(order.groups, keys, problems)
        check_keyless_parents(tables, keys, problems)
        remarks.append(
            "the role may not set session_replication_role on the target: rows are written in the order of foreign"
            " keys, which is slower"
        )
        remarks += [
            f"the foreign key {key} is NOT VALID: rows without a parent cannot be written in this order"
            for key in keys
            if not key.validated
        ]
    left = {row["oid"] for row in outside}
    sequences = _sequences(source, target, tables, scope, left, problems, check=not makes_schema)
    # Roles that will be created, or that are missing already.
    roles_named = {*roles, *(problem.where.removeprefix("role ") for problem in problems)}
    check_large_objects(source, target, scope, progress, roles_named, problems, remarks)
    if not progress.is_brief:
        remarks += remarks_on(source, target, creates=makes_schema, is_superuser=is_superuser(target))
        remarks += disabled_note(source if makes_schema or progress.is_bare else target, target, tables, scope, mode)
    if not makes_schema and not progress.is_bare and not progress.is_brief:
        remarks += other_differences(source, target, tables, scope, names)
    by_name = {table.name: table for table in tables}
    return Plan(
        scope.name,
        *names,
        tuple(by_name[name] for name in order.tables),
        sequences,
        tuple(keys),
        tuple(tuple(display_name(*name) for name in group) for group in order.cycles),
        mode,
        scope.create_schema,
        tuple(problems),
        tuple(remarks),
        roles,
        large_objects=scope.has_large_objects,
    )


def _check_servers(
    source: Connection, target: Connection, names: tuple[str, str], problems: list[Problem], remarks: list[str]
) -> None:
    servers = [catalog.read_server(source), catalog.read_server(target)]
    for name, server in zip(names, servers, strict=True):
        if server.version < OLDEST:
            what = f"PostgreSQL {server.version // 10000} is too old"
            problems.append(Problem(f"node {name}", what, "use PostgreSQL 14 or newer"))
        if server.encoding == "SQL_ASCII":
            what = "the encoding SQL_ASCII does not define the characters of its texts"
            problems.append(Problem(f"node {name}", what, "use a database with the encoding UTF8"))
    for name, connection in zip(names, (source, target), strict=True):
        reason = all_tables_problem(connection, f"{LOG_SCHEMA}.installation")
        if reason:
            problems.append(Problem(f"node {name}", reason, CURE))
    if servers[0].identity == servers[1].identity:
        problems.append(Problem(f"{names[0]} and {names[1]}", "they are the same database", "name two databases"))
    if servers[0].encoding != servers[1].encoding and servers[1].encoding != "UTF8":
        what = f"its encoding {servers[1].encoding} may lack characters of {servers[0].encoding} on {names[0]}"
        problems.append(Problem(f"node {names[1]}", what, "create the target's database with the encoding UTF8"))
    elif servers[0].encoding != servers[1].encoding:
        what = f"{servers[0].encoding} on {names[0]}, {servers[1].encoding} on {names[1]}"
        remarks.append(f"the encodings differ: {what}; the rows cannot be compared, and a switchover is refused")


def _chosen(
    source: Connection, scope: Scope, remarks: list[str], *, is_started: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the relations of the source in the scope, and the tables outside of it.

    Raise if a table that is named for a new sync does not exist. Materialized views are outside if they are excluded.
    """
    relations = _relations(source)
    named = scope.members | _match(source, relations, scope.tables, may_lack=is_started).keys()
    matched = _match(source, relations, scope.exclude_tables, may_lack=is_started)
    excluded = {**{oid: "--exclude-tables" for oid in matched if oid not in scope.members}, **scope.left_out}
    for why in sorted(set(excluded.values())):
        left = [display_name(row["schema"], row["name"]) for row in relations if excluded.get(row["oid"]) == why]
        if left:
            remarks.append(f"excluded ({why}): {', '.join(left)}")
    chosen = [row for row in relations if row["oid"] not in excluded and (not scope.tables or row["oid"] in named)]
    inside = {row["oid"] for row in chosen}
    outside = [
        row
        for row in relations
        if not row["extension"] and (row["oid"] not in inside if row["kind"] != "m" else row["oid"] in excluded)
    ]
    return chosen, outside


def not_created(source: Connection, scope: Scope, live: Container[int] | None = None) -> tuple[TableName, ...]:
    """Return the relations that --create-schema does not create: tables outside of the scope, and views on them.

    With `live`, also all tables but these: they are set aside.
    """
    chosen, outside = _chosen(source, scope, [], is_started=True)
    if live is not None:
        outside += [row for row in chosen if _is_read(row) and row["oid"] not in live]
    return find_left_out(source, [row["oid"] for row in outside]).relations


def created_tables(source: Connection, scope: Scope) -> dict[int, TableName]:
    """Return the tables of the sync that --create-schema creates, by their oids on the source."""
    chosen, _ = _chosen(source, scope, [], is_started=True)
    return {row["oid"]: (row["schema"], row["name"]) for row in chosen if row["kind"] in "rp" and not row["extension"]}


def _relations(connection: Connection) -> list[dict[str, Any]]:
    return [row for row in _records(connection, "relations") if not row["is_ours"]]


def _sizes(connection: Connection, oids: Many[int]) -> dict[int, tuple[int, int]]:
    """Return the rows, estimated, and the bytes of tables, by oid."""
    statement = load("trueup.verbs.sync", "plan.sql")["sizes"]
    return {oid: (rows, size) for oid, rows, size in connection.execute(statement, {"oids": list(oids)}).fetchall()}


def _records(connection: Connection, statement: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.verbs.sync", "plan.sql")[statement], _OURS).fetchall()


def outside(source: Connection, scope: Scope) -> dict[int, tuple[str, str]]:
    """Return name and reason of every table of a database that is not in a started sync, by oid; "": no reason."""
    rows = _records(source, "tables")
    named = _match(source, rows, scope.tables, may_lack=True)
    excluded = _match(source, rows, scope.exclude_tables, may_lack=True)
    found: dict[int, tuple[str, str]] = {}
    for row in rows:
        oid = row["oid"]
        if oid in scope.members:
            continue
        why = f"of the extension {row['extension']}" if row["extension"] else scope.left_out.get(oid, "")
        if not why and oid in excluded:
            why = f"--exclude-tables {excluded[oid]}"
        if not why and scope.tables and oid not in named:
            why = "not in --tables"
        found[oid] = display_name(row["schema"], row["name"]), why
    return found


def query_tables(connection: Connection) -> Cursor:
    """Send the query for oid, schema and name of all tables with rows of users."""
    return connection.execute(load("trueup.verbs.sync", "plan.sql")["tables"], _OURS)


def matching_tables(source: Connection, texts: Many[str]) -> list[str]:
    """Return the tables of the source that match one of the names or patterns; raise if one matches none."""
    relations = _relations(source)
    matched = _match(source, relations, texts)
    return [display_name(row["schema"], row["name"]) for row in relations if row["oid"] in matched]


def _match(
    source: Connection, relations: Many[dict[str, Any]], texts: Many[str], *, may_lack: bool = False
) -> dict[int, str]:
    """Return the oids of the relations that match one of the names or patterns, with it; raise if one matches none.

    With `may_lack`, a name may match none: the table was dropped or renamed.
    """
    oids: dict[TableName, int] = {(row["schema"], row["name"]): row["oid"] for row in relations}
    matched: dict[int, str] = {}
    for pattern in parse_patterns(tables=texts).take:
        if pattern.names_one:
            spellings = [(s, t) for s in pattern.schema.spellings() for t in pattern.table.spellings()]
            matches = [oids[name] for name in spellings if name in oids][:1]
        else:
            matches = [oid for name, oid in oids.items() if pattern.matches(*name)]
        if not matches and not may_lack:
            near = catalog.nearest_table(source, display_name(pattern.schema.text, pattern.table.text))
            raise CheckFailed([f"no table matches {pattern.text}{near}"], cure="check the name")
        matched.update(dict.fromkeys(matches, pattern.text))
    return matched


def _is_read(row: dict[str, Any]) -> bool:
    """Return whether a relation may be part of a sync, so that its definition has to be read."""
    return not row["extension"] and row["kind"] != "m"


def _source_table(
    row: dict[str, Any],
    read: Mapping[TableName, catalog.Table | CheckFailed],
    sizes: Mapping[int, tuple[int, int]],
    problems: list[Problem],
    remarks: list[str],
) -> tuple[SyncTable, catalog.Table] | None:
    """Return the table as the source has it, or None after adding the reason to `problems` or `remarks`."""
    shown = display_name(row["schema"], row["name"])
    if row["extension"]:
        remarks.append(f"{shown} belongs to the extension {row['extension']}, which creates it on the target too")
        return None
    if row["kind"] == "m":
        # See `view_notes`.
        return None
    table = read.get((row["schema"], row["name"]))
    if isinstance(table, CheckFailed):
        # Code of another role, which a query would run.
        problems += [Problem(shown, reason, table.cure) for reason in table.reasons]
        return None
    why = _why_not(row, table)
    if table is None or why:
        what, cure = why or _GONE
        problems.append(Problem(shown, what, f"{cure}, or exclude it: --exclude-tables {shown}"))
        return None
    key = table.keys[0].columns if table.keys else ()
    named = {column.name: column for column in table.columns}
    spec = TableSpec(
        row["schema"],
        row["name"],
        tuple(KeySpec(column_spec(named[name]), key_order([named[name]])) for name in key),
        tuple(column_spec(column) for column in table.columns),
        # Triggers do not see the values of virtual generated columns.
        hashed=row_id_columns(column_spec(column) for column in table.columns if not key and not column.generated),
    )
    names = tuple(column.name for column in table.columns)
    synced = SyncTable(target_of(spec, table), names, row["oid"], row["kind"] == "p", *sizes.get(row["oid"], (0, 0)))
    return synced, table


def _is_refused(row: dict[str, Any]) -> bool:
    """Return whether a table cannot be part of a sync, whatever its columns are."""
    return _why_not(row, None) != _GONE


def _why_not(row: dict[str, Any], table: catalog.Table | None) -> tuple[str, str] | None:
    """Return why a table cannot be captured and copied without losing changes, and the cure; or None."""
    if row["kind"] == "f":
        return "it is a foreign table: its rows are in another database", "sync that database"
    if row["foreign_parts"]:
        return f"its partition {row['foreign_parts'][0]} is a foreign table", "detach that partition"
    if row["unlogged"]:
        part = "it" if row["persistence"] == "u" else f"its partition {row['unlogged'][0]}"
        return f"{part} is unlogged: a crash empties it, unrecorded", f"ALTER TABLE {row['unlogged'][0]} SET LOGGED"
    if row["inherits"]:
        return "it inherits from another table: statements on that one would not be recorded", "use partitions"
    if row["is_inherited"]:
        return "other tables inherit from it: its key does not identify one row", "use partitions"
    if row["secured"]:
        return "row security hides rows of it from the role", "use a role with BYPASSRLS, or the owner"
    if not row["is_owner"]:
        return f"only its owner {row['owner']} can create triggers on it that always fire", "use the owner's role"
    if row["is_subscribed"]:
        return "a subscription writes to it, and fires no statement triggers", "sync from the publisher"
    if table is None:
        return _GONE
    unreadable = [column.name for column in table.columns if not column.readable]
    if unreadable or not table.usage:
        columns = ", ".join(unreadable)
        what = f"the role may not SELECT {columns}" if columns else "the role has no USAGE on its schema"
        return what, "grant the privilege"
    if all(column.generated for column in table.columns):
        return "it has no column that can be written", "add a column"
    return None


def _check_keyless(
    source: Connection, target: Connection, tables: Many[SyncTable], problems: list[Problem], remarks: list[str]
) -> None:
    """Add a problem if the servers find rows without a key by different numbers; name the tables that cost time."""
    keyless = [table for table in tables if table.spec.is_keyless]
    if not keyless:
        return
    encodings = {catalog.read_server(connection).encoding for connection in (source, target)}
    if len(encodings) > 1 or not same_row_ids([source, target]):
        what = "it has no key, and the two servers compute different hashes of its rows (encoding, version or hardware)"
        problems += [Problem(str(table), what, SOURCE_KEY_CURE) for table in keyless]
    for table in keyless:
        if table.bytes >= LARGE_KEYLESS:
            remarks.append(
                f"{table} has no key: each round that changes it, also the last one of a switchover, scans all its"
                f" {table.bytes / 1024**2:,.0f} MB on both servers; {SOURCE_KEY_CURE}"
            )


def _sequences(
    source: Connection,
    target: Connection,
    tables: Many[SyncTable],
    scope: Scope,
    outside: set[int],
    problems: list[Problem],
    *,
    check: bool,
) -> tuple[Sequence, ...]:
    """Return all sequences of the source but those of excluded tables; with `--tables`, those that the tables use."""
    oids = {table.oid for table in tables}
    chosen = []
    on_target = {(row["schema"], row["name"]): row for row in _records(target, "sequences")}
    for row in _records(source, "sequences"):
        users = set(row["users"] or ())
        if (scope.tables and not oids & users) or (users and users <= outside):
            continue
        sequence = Sequence(row["schema"], row["name"], row["owner"], row["definition"])
        chosen.append(sequence)
        where = f"sequence {sequence}"
        if not row["may_read"]:
            problems.append(Problem(where, "the role may not read it on the source", "GRANT SELECT"))
        other = on_target.get((sequence.schema, sequence.name))
        if not check:
            continue
        if other is None:
            problems.append(Problem(where, "it does not exist on the target", "create it there"))
        elif other["definition"] != row["definition"]:
            what = f"it differs: {row['definition']} on the source, {other['definition']} on the target"
            problems.append(Problem(where, what, "ALTER SEQUENCE on the target"))
        elif not other["may_write"]:
            problems.append(Problem(where, "the role may not set it on the target", "GRANT UPDATE"))
    return tuple(chosen)
