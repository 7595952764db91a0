"""What the target's server was built without, and the source uses: XML, compression with lz4, ICU, locales."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from trueup.config.wording import shown_names
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, display_part
from trueup.db.statements import load
from trueup.verbs.sync.model import Problem, SyncTable

_SHOWN = 5


def check_values(source: Connection, target: Connection, tables: Iterable[SyncTable], problems: list[Problem]) -> None:
    """Add a problem per table with values that the target cannot read.

    A table without such values can be synced; it is set aside when there is one.
    """
    by_oid = {table.oid: table for table in tables}
    rows = _rows(source, "xml", {"oids": list(by_oid)})
    if not rows or _has_xml(target):
        return
    for oid in dict.fromkeys(row["oid"] for row in rows):
        table, columns = by_oid[oid], [str(row["column"]) for row in rows if row["oid"] == oid]
        is_set = sql.SQL(" OR ").join(sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in columns)
        query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(sql.Identifier(*table.name), is_set)
        if one_value(source.execute(query)):
            shown = ", ".join(map(display_part, columns))
            what = f"the target's server was built without XML, and cannot read values of {shown}"
            cure = f"use a server with XML (libxml), or exclude it: --exclude-tables {table}"
            problems.append(Problem(str(table), what, cure))


def check_definitions(
    source: Connection, target: Connection, left_out: Collection[TableName], problems: list[Problem]
) -> None:
    """Add a problem per definition that the target's server does not accept; `left_out` is not created."""
    if not one_value(target.execute(_statement("has_lz4"))):
        for row in _rows(source, "lz4"):
            name = (str(row["schema"]), str(row["name"]))
            if name in left_out:
                continue
            kind = "MATERIALIZED VIEW" if row["is_view"] else "TABLE"
            alter = sql.SQL("ALTER {} {} ALTER {} SET COMPRESSION pglz").format(
                sql.SQL(kind), sql.Identifier(*name), sql.Identifier(row["column"])
            )
            what = f"column {row['column']} is compressed with lz4, which the target's server was built without"
            cure = f"{alter.as_string(source)} (values that are stored stay as they are)"
            problems.append(Problem(display_name(*name), what, cure))
    if not _has_xml(target):
        what = "the target's server was built without XML, which its definition uses"
        problems += [
            Problem(row["shown"], what, "use a server with XML (libxml), or drop it")
            for row in _rows(source, "xml_definitions")
            if (row["schema"], row["name"]) not in left_out
        ]
    known = {str(name) for (name,) in target.execute(_statement("known_collations")).fetchall()}
    missing: dict[tuple[str, bool], list[str]] = {}
    for row in _rows(source, "collations"):
        if str(row["collation"]) not in known and (row["schema"], row["name"]) not in left_out:
            missing.setdefault((row["collation"], row["is_icu"]), []).append(row["shown"])
    what = "the target's server does not have it"
    for (collation, is_icu), users in missing.items():
        imported = "install the locale there, and run SELECT pg_import_system_collations('pg_catalog')"
        there = "use a server that was built with ICU" if is_icu else imported
        cure = f"{there}; or give another collation to what uses it: {shown_names(users, _SHOWN)}"
        problems.append(Problem(f"collation {collation}", what, cure))


def _has_xml(target: Connection) -> bool:
    try:
        with target.transaction():
            target.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def _statement(name: str) -> Any:
    return load("trueup.verbs.sync.target_schema", "features.sql")[name]


def _rows(connection: Connection, name: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_statement(name), values).fetchall()
