"""The condition `schema equal`: objects, owners and grants of both databases, and what each role may do."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trueup.config.wording import shown_names
from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.meaning import without_equal_meaning
from trueup.db.names import display_part
from trueup.db.schema import (
    RIGHTS,
    Item,
    Name,
    SchemaDifference,
    compare_schemas,
    read_schema,
    without_newest_versions,
)
from trueup.db.statements import load
from trueup.rows.write.disabled_triggers import STATES, recorded
from trueup.verbs.switchover import pointer
from trueup.verbs.switchover.accepted import Accepted
from trueup.verbs.switchover.role_rights import Side, role_differences
from trueup.verbs.sync.target_schema.left_out import find_left_out

_VIEWS = ("view", "materialized view")
_RELATIONS = ("table", *_VIEWS)
_SHOWN = 3


@dataclass(frozen=True)
class Compared:
    """The tables of the sync, its sequences, and whether it is a sync of the whole database."""

    tables: Sequence[TableName]
    sequences: Sequence[TableName]
    is_whole: bool


def schema_differences(
    source: Side, target: Side, compared: Compared, accepted: Accepted
) -> tuple[list[str], list[str]]:
    """Return the differences of the schemas that close the gate, and remarks: accepted ones, and unused patterns.

    In a sync of the whole database all objects are compared, except those of excluded tables; else only the tables and
    what belongs to them. A view on excluded tables may be missing: --create-schema does not create it.
    """
    schemas: dict[str, dict[Name, Item]] = {}
    left_out: set[TableName] = set()
    for side in (source, target):
        schemas[side.node], others = _items(side.connection, compared)
        left_out |= _left_out(side.connection, others)
    # In a chain, the source is the target of another sync: its triggers count as they were.
    for trigger in recorded(source.connection, None):
        if item := schemas[source.node].get(trigger.item):
            facts = {**item.facts, "enabled": STATES[trigger.state]}
            schemas[source.node][trigger.item] = replace(item, facts=facts)
    differences = without_newest_versions(compare_schemas(schemas), schemas)
    items = schemas[target.node], schemas[source.node]
    differences = without_equal_meaning(target.connection, differences, *items)
    if source.connection.info.server_version > target.connection.info.server_version:
        # The way back: the older server does not know all of the syntax that the newer one prints.
        differences = without_equal_meaning(source.connection, differences, *items[::-1], is_in_use=True)
    differences += role_differences(source, target, _related(schemas, compared), _secured(schemas))
    refused: list[str] = []
    remarks: list[str] = []
    expected = [each for each in differences if _is_left_out(each, schemas, left_out)]
    remarks += [f"{_text(each, _name(each))}: it uses tables outside of the sync" for each in expected]
    differences = [each for each in differences if each not in expected]
    named = [(difference, _name(difference)) for difference in differences]
    for difference, name in named:
        if accepted.accepts(difference, name):
            remarks.append(f"accepted: {_text(difference, name)}")
        else:
            refused.append(_text(difference, name))
    unused = [f"--accept-schema {pattern} matches no difference" for pattern in accepted.unused(named)]
    # Probably one of the refused ones was meant.
    return (refused + unused, remarks) if refused else (refused, remarks + unused)


def relations(connection: Connection, table: TableName) -> list[TableName]:
    """Return a table and its partitions."""
    values = {"schema": table[0], "table": table[1], "trigger": "", "sync": ""}
    rows = connection.execute(pointer.statement("relations"), values).fetchall()
    return [(row[0], row[1]) for row in rows]


def _items(connection: Connection, compared: Compared) -> tuple[dict[Name, Item], set[TableName]]:
    """Return the objects that are compared, and the tables outside of the sync."""
    synced = {relation for table in compared.tables for relation in relations(connection, table)}
    items = read_schema(connection, tables=None if compared.is_whole else synced, rights=True)
    others = {item.table for item in items.values() if item.kind == "table" and item.table is not None} - synced
    kept = {key: item for key, item in items.items() if item.table is None or item.table not in others}
    return kept, others


def _left_out(connection: Connection, tables: Collection[TableName]) -> set[TableName]:
    """Return the views that use these tables, directly or through other views."""
    values = {"schemas": [schema for schema, _ in tables], "names": [name for _, name in tables]}
    rows = connection.execute(load("trueup.verbs.switchover", "gate.sql")["oids"], values).fetchall()
    return set(find_left_out(connection, [oid for (oid,) in rows]).relations)


def _related(schemas: Mapping[str, Mapping[Name, Item]], compared: Compared) -> list[TableName]:
    """Return the tables and views that both databases have, and the sequences; a missing one is a difference itself."""
    both = [{item.table for item in items.values() if item.kind in _RELATIONS} for items in schemas.values()]
    return [name for name in set.intersection(*both) if name is not None] + list(compared.sequences)


def _secured(schemas: Mapping[str, Mapping[Name, Item]]) -> set[TableName]:
    """Return the tables with row security on both sides: elsewhere, row security itself is a difference or not used."""
    both = [{item.table for item in items.values() if item.facts.get("row security")} for items in schemas.values()]
    return {name for name in set.intersection(*both) if name is not None}


def _is_left_out(
    difference: SchemaDifference, schemas: Mapping[str, Mapping[Name, Item]], left_out: Container[TableName]
) -> bool:
    name = (difference.kind, difference.schema, difference.name)
    items = [items[name] for items in schemas.values() if name in items]
    return difference.how == "missing" and difference.kind in _VIEWS and any(item.table in left_out for item in items)


def _name(difference: SchemaDifference) -> str:
    return f"{display_part(difference.schema)}.{difference.name}" if difference.schema else difference.name


def _text(difference: SchemaDifference, name: str) -> str:
    nodes = " and ".join(difference.nodes)
    if difference.kind == RIGHTS and difference.how == "changed":
        details = "; ".join(_right(fact, values) for fact, values in difference.facts.items())
        return f"rights on {name} differ: {details}"
    label = f"{difference.kind} {name}"
    remark = f": {difference.remark}" if difference.remark else ""
    if difference.how == "missing":
        return f"{label} is missing on {nodes}{remark}"
    if difference.how == "unreadable":
        return f"{label} cannot be read on {nodes}{remark}"
    facts = f" ({', '.join(difference.facts)})" if difference.facts else ""
    return f"{label} differs{facts}{remark}"


def _right(fact: str, values: Mapping[str, Any]) -> str:
    """Return how an owner or grants differ; grants that both have are left out."""
    if fact == "owner":
        return "owner " + ", ".join(f"{owner} on {node}" for node, owner in values.items())
    common = set.intersection(*(set(grants or ()) for grants in values.values()))
    only = {node: [grant for grant in grants or () if grant not in common] for node, grants in values.items()}
    return ", ".join(f"{shown_names(grants, _SHOWN)} only on {node}" for node, grants in only.items() if grants)
