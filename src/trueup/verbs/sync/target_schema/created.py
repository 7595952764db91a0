"""The objects that --create-schema created on the target: `drop` removes them if the copy was not finished.

Their tables would be in the way of another start: they have some of the rows, and no keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from trueup.db.connection import Connection, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.verbs.sync.state import State

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# How PostgreSQL names a kind of objects -> what DROP is followed by.
_KINDS = {
    "table": sql.SQL("TABLE"),
    "view": sql.SQL("VIEW"),
    "materialized view": sql.SQL("MATERIALIZED VIEW"),
    "sequence": sql.SQL("SEQUENCE"),
    "foreign table": sql.SQL("FOREIGN TABLE"),
    "type": sql.SQL("TYPE"),
    "function": sql.SQL("FUNCTION"),
    "procedure": sql.SQL("PROCEDURE"),
    "aggregate": sql.SQL("AGGREGATE"),
    "operator": sql.SQL("OPERATOR"),
    "operator family": sql.SQL("OPERATOR FAMILY"),
    "operator class": sql.SQL("OPERATOR CLASS"),
    "cast": sql.SQL("CAST"),
    "collation": sql.SQL("COLLATION"),
    "conversion": sql.SQL("CONVERSION"),
    "language": sql.SQL("LANGUAGE"),
    "transform": sql.SQL("TRANSFORM"),
    "access method": sql.SQL("ACCESS METHOD"),
    "text search configuration": sql.SQL("TEXT SEARCH CONFIGURATION"),
    "text search dictionary": sql.SQL("TEXT SEARCH DICTIONARY"),
    "text search parser": sql.SQL("TEXT SEARCH PARSER"),
    "text search template": sql.SQL("TEXT SEARCH TEMPLATE"),
    "event trigger": sql.SQL("EVENT TRIGGER"),
    "server": sql.SQL("SERVER"),
    "foreign-data wrapper": sql.SQL("FOREIGN DATA WRAPPER"),
}
# Without CASCADE: a schema that contains other objects stays.
_DROPPED = {**_KINDS, "schema": sql.SQL("SCHEMA")}


def record_created(
    source: Connection, target: Connection, sync: str, roles: Sequence[str], entries: Iterable[tuple[int, int]]
) -> None:
    """Record the objects and roles that the open transaction created, and what the second step will create.

    `entries` are the objects of the second step on the source: catalog and oid.
    """
    statements = _statements()
    classids, oids = _columns(entries, 2)
    planned = source.execute(statements["planned"], {"classids": classids, "oids": oids}).fetchall()
    known = {(classid, identity) for classid, _, identity in _existing(target, planned)}
    rows = [[classid, 0, identity] for classid, identity in planned if (classid, identity) not in known]
    target.execute(statements["record"], {"sync": sync, "roles": list(roles), "planned": Jsonb(rows)})


def check_created(target: Connection, stored: State) -> None:
    """Raise if objects of others use what `drop_created` would drop, or tables among it have rows of others."""
    found = _found(target, stored)
    classids, oids = _columns(((row[0], row[1]) for row in found if row[2] in _KINDS), 2)
    users = target.execute(_statements()["users"], {"classids": classids, "oids": oids}).fetchall()
    if users:
        raise CheckFailed(
            [f"{user} uses {made}, which the unfinished start has created" for user, made in users],
            cure="drop or change it, then run trueup sync drop again; or complete the copy: trueup sync start",
        )
    # The transactions of rounds are not known.
    tables = [] if stored.rounds else [identity for *_, kind, identity in found if kind == "table"]
    if written := [table for table in tables if _has_other_rows(target, stored, table)]:
        raise CheckFailed(
            [f"{table} has rows that the unfinished start has not copied" for table in written],
            cure="save these rows elsewhere, empty the tables with TRUNCATE, then run trueup sync drop again",
        )


def drop_created(target: Connection, stored: State) -> tuple[bool, list[str]]:
    """Drop what --create-schema created for a sync whose copy was not finished.

    Return whether there was anything, and what stays: roles, extensions, default privileges, and a schema that contains
    other objects.
    """
    if not is_unfinished(stored):
        return False, []
    target.execute(_statements()["unlink"], {"sync": stored.sync})
    rows = _found(target, stored)
    for row in rows:
        kind, identity = row[2:]
        # It may have been dropped with another object.
        if kind not in _DROPPED or not _exists(target, row):
            continue
        # The server has quoted the identity.
        name = sql.SQL(identity)
        try:
            target.execute(
                sql.SQL("DROP {} {}{}").format(_DROPPED[kind], name, sql.SQL("" if kind == "schema" else " CASCADE"))
            )
        except psycopg.errors.DependentObjectsStillExist:
            if kind != "schema":
                raise
    left = [f"{kind} {identity}" for *_, kind, identity in (row for row in rows if _exists(target, row))]
    if stored.phase == "building":
        left.append("the owner, the privileges and the settings of the database, if they were set")
    return bool(rows), left


def is_unfinished(stored: State) -> bool:
    """Return whether --create-schema created objects for a copy that was not finished."""
    return stored.made_schema and stored.phase != "running"


def _found(target: Connection, stored: State) -> list[tuple[int, int, str, str]]:
    """Return what exists of the created objects: catalog, oid, kind, identity; in the order in which to drop it."""
    if not is_unfinished(stored):
        return []
    statements = _statements()
    rows = target.execute(statements["created"], {"sync": stored.sync}).fetchall()
    rows += _existing(target, [(classid, identity) for classid, oid, identity in rows if not oid])
    classids, oids, identities = _columns((row for row in rows if row[1]), 3)
    values = {"classids": classids, "oids": oids, "identities": identities}
    return target.execute(statements["found"], values).fetchall()


def _has_other_rows(target: Connection, stored: State, table: str) -> bool:
    """Return whether a table has rows of other transactions than those which recorded a copied part."""
    query = sql.SQL(
        "SELECT EXISTS (SELECT FROM ONLY {} t WHERE NOT EXISTS ("
        "SELECT FROM trueup.copied c WHERE c.sync = %s AND c.xmin = t.xmin))"
    )
    # The server has quoted the identity. A partitioned table has no rows of its own.
    return bool(one_value(target.execute(query.format(sql.SQL(table.replace("%", "%%"))), [stored.sync])))


def _exists(target: Connection, row: tuple[int, int, str, str]) -> bool:
    """Return whether an object exists, under the same name."""
    classid, oid, _, identity = row
    values = {"classids": [classid], "oids": [oid], "identities": [identity]}
    return target.execute(_statements()["found"], values).fetchone() is not None


def _existing(target: Connection, planned: Iterable[tuple[int, str]]) -> list[tuple[int, int, str]]:
    classids, identities = _columns(planned, 2)
    if not classids:
        return []
    return target.execute(_statements()["existing"], {"classids": classids, "identities": identities}).fetchall()


def _columns(rows: Iterable[Sequence[Any]], count: int) -> list[list[Any]]:
    """Return the columns of rows."""
    kept = list(rows)
    return [[row[column] for row in kept] for column in range(count)]


def _statements() -> Mapping[str, LiteralString]:
    return load("trueup.verbs.sync.target_schema", "created.sql")
