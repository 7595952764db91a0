"""The way back: what a rollback needs, as far as it can be checked while the old database is in use."""

from __future__ import annotations

from dataclasses import replace

from trueup.config.wording import counted
from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName, read_foreign_keys
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.rows.write.triggers import silence_triggers
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.link import Link

# What no check before the decision can show.
UNKNOWN = (
    "that the old server is still up when it is needed, and has room for the changes that are copied back",
    "that no table is created again on the closed database: it accepts writes, and trueup switchover status names it"
    " (partitions that are created later are closed)",
    "how long a rollback takes: that depends on the changes since, which trueup sync run in its direction copies back",
)


def problems(link: Link, source: Connection, target: Connection) -> list[str]:
    """Return why a rollback would fail: a table whose changes are not recorded, no state, missing rights."""
    old, new = link.source_node.name, link.target_node.name
    names = [table.name for table in link.tables]
    values = {"schemas": [schema for schema, _ in names], "names": [name for _, name in names]}
    statements = load("trueup.verbs.switchover", "way_back.sql")
    oids = dict(zip(names, (row[0] for row in target.execute(statements["oids"], values)), strict=True))
    found: list[str] = []
    with changelog.open_log(link.target_node) as log:
        if not changelog.is_installed(log, link.name):
            return [f"{new} has no change log"]
        tables = [replace(table, oid=oids[table.name]) for table in link.tables]
        _, unrecorded = changelog.attached(log, link.name, tables)
        found += [f"on {new}, {problem.where}: {problem.what}" for problem in unrecorded]
    stored = state.read(source, link.name)
    if stored is None or stored.id != link.id or stored.source != state.identity(target):
        found.append(f"{old} has no state of a sync from {new}")
    found += [
        f"the role {role} may not insert, update and delete rows of {display_name(schema, name)} on {old}"
        for role, schema, name in source.execute(statements["not_writable"], values).fetchall()
    ]
    return found + _actions(source, names, old)


def _actions(source: Connection, names: list[TableName], old: str) -> list[str]:
    """Return the foreign keys that would act on other tables of the old database when a rollback deletes rows."""
    with source.transaction(force_rollback=True):
        if silence_triggers(source):
            # The gate of the rollback checks their rows.
            return []
    return [
        f"on {old}, the foreign key {key} refers to {display_name(*key.parent_root)}: it would fire when a rollback"
        " writes; add its table to the sync, drop the foreign key, or let the role set session_replication_role"
        for key in read_foreign_keys(source, names)
        if key.parent_root in names and key.child_root not in names
    ]


def description(link: Link) -> str:
    """Return what `problems` has checked."""
    return (
        f"{link.target_node.name} records the changes of {counted(len(link.tables), 'table')},"
        f" and rows can be written on {link.source_node.name}"
    )
