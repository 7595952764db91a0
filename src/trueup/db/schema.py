"""Read all objects of a database as facts, and compare the facts of several nodes.

The facts do not depend on the history of a database: they contain no oids, no `search_path` and no dropped columns.
Values of sequences, comments and tablespaces are not included; owners and grants only where asked for.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import errors
from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.names import display_part
from trueup.db.statements import load

# Kind, schema, and the displayed name: orders, orders.total, total_of(integer).
Name = tuple[str, str, str]

# Statements of schema.sql, and the kinds of objects that they read: objects of tables and views, ...
_OF_RELATIONS = {
    "tables": ("table",),
    "columns": ("column",),
    "constraints": ("constraint",),
    "indexes": ("index",),
    "sequences": ("sequence",),
    "views": ("view", "materialized view"),
    "triggers": ("trigger",),
    "policies": ("policy",),
    "rules": ("rule",),
    "statistics": ("statistics",),
}
# ... and objects of schemas.
_OF_SCHEMAS = {
    "schemas": ("schema",),
    "functions": ("function", "procedure", "aggregate"),
    "types": ("type",),
    "collations": ("collation",),
    "extensions": ("extension",),
}
# Owners and grants of both are items of their own, so that an object and the rights on it differ separately.
RIGHTS = "rights"
_RIGHTS_OF_RELATIONS = {"relation_rights": (RIGHTS,)}
_RIGHTS_OF_SCHEMAS = {"schema_rights": (RIGHTS,), "default_rights": ("default privileges",)}
_BLOCK_OF = {
    kind: block
    for block, kinds in {**_OF_RELATIONS, **_OF_SCHEMAS, **_RIGHTS_OF_SCHEMAS, **_RIGHTS_OF_RELATIONS}.items()
    for kind in kinds
}
_HOMES = ("table", "view", "materialized view")
# Facts that servers of different versions may print differently although they are equal.
PRINTED = (
    "definition", "default", "generated", "body", "using", "with check", "index", "constraints", "partition by",
    "arguments", "defaults",
)  # fmt: skip
# Facts that change no result, by kind of object. pg_dump copies them, except whether a materialized view is populated,
# and triggers of foreign keys that are disabled, as they are on a target while rows are written.
_TUNING = {
    "table": ("clustered on",),
    "column": ("not null is inherited", "compression", "statistics target", "options"),
    "constraint": ("disabled",),
    "index": ("statistics targets",),
    "statistics": ("statistics target",),
    "materialized view": ("populated", "access method", "clustered on", "column settings"),
}
# Facts that are not compared: they help to judge others.
_NOT_COMPARED = ("newest version", "expressions")
# A privilege of tables since version 17, which owners have there.
_MAINTAIN, _MAINTAIN_SINCE = " MAINTAIN", 17

# Since this version, the columns of a view on one table are printed without the table name.
_SHORT_SINCE = 16
_NAME = r"""(?:"(?:[^"]|"")*"|[a-z_][\w$]*)"""
_FROM = re.compile(rf"\n +FROM (?:{_NAME}\.)?({_NAME})(?: ({_NAME}))?")


@dataclass(frozen=True)
class Item:
    """One object of a database: its name and its facts."""

    kind: str
    schema: str
    name: str
    # The table or view that it is or belongs to (schema, name); None for objects of schemas.
    table: tuple[str, str] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The major version of the server, which determines how definitions are printed.
    version: int = 0
    # Why the facts are unknown. If a whole kind is unreadable, it is one item with the name "*".
    unreadable: str = ""


@dataclass(frozen=True)
class SchemaDifference:
    """One object that is not the same on all nodes, or that could not be read."""

    kind: str
    schema: str
    name: str
    # 'missing' on these nodes, 'changed' (then all nodes that have it), or 'unreadable' on these nodes.
    how: str
    nodes: tuple[str, ...]
    # The facts that differ: fact -> node -> value.
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remark: str = ""


def read_schema(
    connection: Connection,
    *,
    schemas: Sequence[str] | None = None,
    tables: Container[tuple[str, str]] | None = None,
    rights: bool = False,
    tuning: bool = False,
) -> dict[Name, Item]:
    """Return all objects of a database, or only those of these schemas, or of these tables and views (schema, name).

    With `rights`, their owners and grants too; with `tuning`, also facts that change no result. Objects of the system,
    of extensions and of trueup are excluded. An object that the role may not read is an item with the reason in
    `unreadable`.
    """
    blocks = [*_OF_RELATIONS, *(_RIGHTS_OF_RELATIONS if rights else ())]
    if tables is None:
        blocks += [*_OF_SCHEMAS, *(_RIGHTS_OF_SCHEMAS if rights else ())]
    with connection.transaction():
        server = _rows(connection, "server", {})[0]
        assert server["path"] == "pg_catalog", "names would be printed without their schema"
        values: dict[str, Any] = {"schemas": None if schemas is None else list(schemas)}
        values["spaces"] = [row["oid"] for row in _rows(connection, "spaces", values)]
        values["ours"] = [row["oid"] for row in _rows(connection, "ours", values)]
        values["relations"] = [
            row["oid"]
            for row in _rows(connection, "relations", values)
            if tables is None or (row["schema"], row["table"]) in tables
        ]
        items: dict[Name, Item] = {}
        for block in blocks:
            for item in _items(connection, block, values, server["version"]):
                known = item if tuning else replace(item, facts=_without_tuning(item))
                items[item.kind, item.schema, item.name] = known
        return items


def _without_tuning(item: Item) -> dict[str, Any]:
    left_out = _TUNING.get(item.kind, ())
    return {fact: value for fact, value in item.facts.items() if fact not in left_out}


def compare_schemas(schemas: Mapping[str, Mapping[Name, Item]]) -> list[SchemaDifference]:
    """Return all differences, ordered by schema, table and kind, without the objects of a missing table."""
    differences: list[SchemaDifference] = []
    everything = {name: item for items in schemas.values() for name, item in items.items()}
    for name, item in sorted(everything.items(), key=_order):
        unreadable = [node for node, items in schemas.items() if name in items and items[name].unreadable]
        differences += [
            _difference(item, "unreadable", (node,), remark=schemas[node][name].unreadable) for node in unreadable
        ]
        known = [
            node
            for node, items in schemas.items()
            if node not in unreadable and _absence_is_known(item, items, everything)
        ]
        having = {node: schemas[node][name] for node in known if name in schemas[node]}
        lacking = tuple(node for node in known if node not in having)
        if having and lacking:
            differences.append(_difference(item, "missing", lacking))
        facts = _changed(having, schemas)
        if facts:
            differences.append(_difference(item, "changed", tuple(having), facts, _remark(facts, having)))
    return differences


def _items(connection: Connection, block: str, values: Mapping[str, Any], version: int) -> Iterator[Item]:
    try:
        with connection.transaction():
            rows = _rows(connection, block, values)
    except errors.InsufficientPrivilege as error:
        yield Item(block, "", "*", version=version, unreadable=error.diag.message_primary or "permission denied")
        return
    for row in rows:
        name = ".".join(map(display_part, row["parts"]))
        if row["arguments"] is not None:
            name += f"({row['arguments']})"
        gone = "definition" in row["facts"] and row["facts"]["definition"] is None
        yield Item(
            row["kind"],
            row["schema"],
            name,
            (row["home"][0], row["home"][1]) if row["home"] else None,
            row["facts"],
            version,
            "it was dropped or changed while it was read: run again" if gone else "",
        )


def _absence_is_known(item: Item, items: Mapping[Name, Item], everything: Mapping[Name, Item]) -> bool:
    """Return whether the absence of an object on a node is known: its kind is readable, and its table exists."""
    if item.kind == RIGHTS and (item.kind, item.schema, item.name) not in items:
        # The object is missing, which is a difference of its own.
        return False
    if item.name == "*" or (_BLOCK_OF[item.kind], "", "*") in items:
        return False
    if item.table is None or item.kind in _HOMES:
        return True
    homes = [(kind, item.table[0], display_part(item.table[1])) for kind in _HOMES]
    return any(home in items for home in homes) or not any(home in everything for home in homes)


def _changed(having: Mapping[str, Item], schemas: Mapping[str, Mapping[Name, Item]]) -> dict[str, dict[str, Any]]:
    """Return the facts that are not the same on all nodes that have the object."""
    changed: dict[str, dict[str, Any]] = {}
    for fact in next(iter(having.values())).facts if len(having) > 1 else ():
        if fact in _NOT_COMPARED:
            continue
        values = {node: item.facts.get(fact) for node, item in having.items()}
        if fact == "grants" and any(item.version < _MAINTAIN_SINCE for item in having.values()):
            values = {
                node: [grant for grant in grants or () if _MAINTAIN not in grant] for node, grants in values.items()
            }
        if fact == "column order":
            # Columns that are missing on a node are separate differences.
            common = set.intersection(*(set(names or ()) for names in values.values()))
            values = {node: [name for name in names or () if name in common] for node, names in values.items()}
        if not _alike(list(values.values())) and not (fact == "definition" and _alike(_shortened(having))):
            changed[fact] = values
    return changed


def without_newest_versions(
    differences: Sequence[SchemaDifference], schemas: Mapping[str, Mapping[Name, Item]]
) -> list[SchemaDifference]:
    """Return the differences without extensions that have the newest version that each server ships."""
    return [difference for difference in differences if not _is_newest(difference, schemas)]


def _is_newest(difference: SchemaDifference, schemas: Mapping[str, Mapping[Name, Item]]) -> bool:
    if difference.kind != "extension" or set(difference.facts) != {"version"}:
        return False
    items = [schemas[node][difference.kind, difference.schema, difference.name] for node in difference.nodes]
    return all(item.facts["version"] == item.facts["newest version"] for item in items)


def _alike(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _shortened(having: Mapping[str, Item]) -> list[str]:
    """Return the definitions; if a newer server is included, those of older servers as newer ones print them."""
    has_newer = any(item.version >= _SHORT_SINCE for item in having.values())
    return [
        _short(item.facts["definition"]) if has_newer and item.version < _SHORT_SINCE else item.facts["definition"]
        for item in having.values()
    ]


def _short(definition: str) -> str:
    """Return the definition of a view as newer servers print it: columns of the only table without the table name.

    Newer servers omit the name only if there is one table, so equal results mean equal views.
    """
    match = _FROM.search(definition)
    if match is None:
        return definition
    prefix = re.escape(f"{match[2] or match[1]}.")
    parts = re.compile(f"""'(?:[^']|'')*'|(?<![\\w$."])({prefix})|{_NAME}""")
    return parts.sub(lambda part: "" if part[1] else part[0], definition)


def _remark(facts: Mapping[str, Any], having: Mapping[str, Item]) -> str:
    versions = sorted({item.version for item in having.values()})
    if len(versions) < 2 or not set(facts) <= set(PRINTED):
        return ""
    listed = " and ".join(map(str, versions))
    return f"PostgreSQL {listed} may print equal definitions differently: compare them manually"


def _difference(
    item: Item,
    how: str,
    nodes: tuple[str, ...],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    remark: str = "",
) -> SchemaDifference:
    return SchemaDifference(item.kind, item.schema, item.name, how, nodes, facts or {}, remark)


_FIRST = ("extension", "schema", "type", "sequence", "table", "column", "constraint", "index")


def _order(entry: tuple[Name, Item]) -> tuple[Any, ...]:
    (kind, schema, name), item = entry
    rank = _FIRST.index(kind) if kind in _FIRST else len(_FIRST)
    return (schema, item.table or ("", ""), rank, kind, name)


def _rows(connection: Connection, block: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.db", "schema.sql")[block], values).fetchall()
