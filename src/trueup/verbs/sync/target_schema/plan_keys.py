"""The foreign keys of a plan: between its tables, and with others; and whether they fire when rows are written."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many

from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.foreign_code import foreign_code_of
from trueup.db.foreign_keys import ForeignKey, TableName, in_order, read_foreign_keys
from trueup.db.names import display_name
from trueup.rows.write.ordered import can_wait
from trueup.rows.write.triggers import silence_triggers
from trueup.verbs.sync.model import ORDERED, REPLICA, Problem, SyncTable

SOURCE_KEY_CURE = "create a primary key, or a unique index over columns whose NOT NULL is valid"


def mode_of(target: Connection) -> str:
    """Return how the role writes rows on a node: with triggers and foreign keys silenced, or in their order."""
    with target.transaction(force_rollback=True):
        return REPLICA if silence_triggers(target) else ORDERED


def read_keys(
    connection: Connection, tables: Many[SyncTable], refused: Collection[TableName], problems: list[Problem]
) -> list[ForeignKey]:
    """Return the foreign keys between the tables; a key to a table outside of the sync is a problem.

    The tables `refused` cannot be added to the sync.
    """
    inside: set[TableName] = {table.name for table in tables}
    known = {problem.where for problem in problems}
    keys: list[ForeignKey] = []
    for key in read_foreign_keys(connection, inside):
        child, parent = display_name(*key.child_root), display_name(*key.parent_root)
        if inside.issuperset((key.child_root, key.parent_root)):
            keys.append(key)
        elif key.child_root in inside and parent not in known:
            what = f"its foreign key {key.name} refers to {parent}, which is not in the sync"
            add = "" if key.parent_root in refused else f"add {parent} to the sync, or "
            problems.append(Problem(child, what, f"{add}exclude it: --exclude-tables {child}"))
    return keys


def keys_from_outside(
    target: Connection, tables: Many[SyncTable], problems: list[Problem], *, can_check: bool
) -> list[ForeignKey]:
    """Return the foreign keys from tables of the target that are outside of the sync.

    Before the copy they are problems, and where they fire too: they would act on rows that are not in the sync. After
    it they are not: the gate of a switchover checks their rows. A rollback needs that, because the old database still
    has the tables that were excluded.
    """
    inside: set[TableName] = {table.name for table in tables}
    known = {problem.where for problem in problems}
    keys = [
        key
        for key in read_foreign_keys(target, inside)
        if key.parent_root in inside and key.child_root not in inside and display_name(*key.child_root) not in known
    ]
    children = sorted({key.child for key in keys})
    foreign = foreign_code_of(target, children, writes=False) if can_check and keys else {}
    query = "SELECT has_table_privilege(%s, 'SELECT') AND NOT row_security_active(%s)"
    for key in keys:
        child, parent = display_name(*key.child_root), display_name(*key.parent_root)
        cure = f"add {child} to the sync, or drop the foreign key on the target"
        if not can_check:
            what = f"its foreign key {key.name} refers to {parent}, whose rows the sync replaces"
            problems.append(Problem(child, what, cure))
        problems += [
            Problem(child, f"its foreign key {key.name} cannot be checked: {reason}", cure)
            for reason in foreign.get(key.child, ())
        ]
        quoted = sql.Identifier(*key.child).as_string(target)
        if can_check and not one_value(target.execute(query, [quoted, quoted])):
            what = f"its foreign key {key.name} cannot be checked: the role may not read all its rows"
            problems.append(Problem(child, what, cure))
    return keys if can_check else []


def way_back_notes(source: Connection, tables: Many[SyncTable], names: tuple[str, str]) -> list[str]:
    """Return the foreign keys of excluded tables that close the gate of a switchover: see `way_back.problems`."""
    inside = {table.name for table in tables}
    keys = [
        key for key in read_foreign_keys(source, inside) if key.parent_root in inside and key.child_root not in inside
    ]
    if not keys or mode_of(source) != ORDERED:
        return []
    return [
        f"the foreign key {key} would fire on {names[0]} when a rollback writes, and closes the gate of a switchover:"
        f" do not exclude its table, drop it, or let the role set session_replication_role on {names[0]}"
        for key in keys
    ]


def check_keyless_parents(tables: Many[SyncTable], keys: Many[ForeignKey], problems: list[Problem]) -> None:
    """Add a problem per keyless table that others refer to: its rows cannot be updated in place."""
    keyless = {table.name for table in tables if table.spec.is_keyless}
    for key in keys:
        if key.parent_root in keyless:
            what = f"it has no key, {key} refers to it, and the role may not set session_replication_role on the target"
            problems.append(Problem(display_name(*key.parent_root), what, SOURCE_KEY_CURE))


def check_cycles(groups: Many[tuple[TableName, ...]], keys: Many[ForeignKey], problems: list[Problem]) -> None:
    """Add a problem per cycle in which no foreign key is deferrable or nullable, so no order of writes exists."""
    for group in groups:
        fixed = [key for key in keys if key.child_root in group and key.parent_root in group and not can_wait(key)]
        if len(group) > 1 and in_order(group, fixed).cycles:
            shown = " and ".join(display_name(*name) for name in group)
            names = ", ".join(str(key) for key in fixed)
            cure = (
                "GRANT SET ON PARAMETER session_replication_role to the role on the target (PostgreSQL 15 or newer), or"
                " make one of the foreign keys DEFERRABLE"
            )
            what = f"they refer to one another by foreign keys that cannot be deferred or NULL: {names}"
            problems.append(Problem(shown, what, cure))
