"""A schema whose names contain %, {}, quotes, a backslash, a line break and an emoji."""

from __future__ import annotations

from typing import Any

from trueup.testing.postgres import Database

ODD = "%s %(x)s {} {0} {y} \"q\" 'r' \\n \\ \n😀"


def quoted(name: str) -> str:
    """Return the odd name with this start, quoted for SQL."""
    return '"' + (name + ODD).replace('"', '""') + '"'


SCHEMA, KEY, VALUE, PARENT, KIND = (quoted(name) for name in ("s", "k", "v", "p", "e"))
TABLE = f"{SCHEMA}.{quoted('t')}"
PARTS = f"{SCHEMA}.{quoted('parts')}"
_TEXT = "'" + ODD.replace("'", "''") + "'"

# A table with a foreign key, a sequence and an enum; and a partitioned table.
CREATE = f"""
CREATE SCHEMA {SCHEMA};
CREATE TYPE {SCHEMA}.{KIND} AS ENUM ('a', {_TEXT});
CREATE TABLE {SCHEMA}.{PARENT} ({KEY} int PRIMARY KEY);
CREATE TABLE {TABLE} (
    {KEY} serial, {VALUE} text, {KIND} {SCHEMA}.{KIND} DEFAULT 'a', {PARENT} int REFERENCES {SCHEMA}.{PARENT},
    CONSTRAINT {quoted("c")} PRIMARY KEY ({KEY}));
CREATE TABLE {PARTS} ({KEY} int PRIMARY KEY, {VALUE} text) PARTITION BY RANGE ({KEY});
CREATE TABLE {SCHEMA}.{quoted("part")} PARTITION OF {PARTS} FOR VALUES FROM (0) TO (99);
"""
FILL = f"""
INSERT INTO {SCHEMA}.{PARENT} VALUES (1);
INSERT INTO {TABLE} ({VALUE}, {KIND}) SELECT 'v' || g, {_TEXT} FROM generate_series(1, 50) g;
INSERT INTO {PARTS} SELECT g, 'v' || g FROM generate_series(1, 50) g;
"""
# Four changes of the table, one of each kind and of the foreign key; one change of the partitioned table.
CHANGE = f"""
UPDATE {TABLE} SET {VALUE} = 'changed' WHERE {KEY} = 3;
DELETE FROM {TABLE} WHERE {KEY} = 4;
INSERT INTO {TABLE} ({KEY}, {VALUE}, {PARENT}) VALUES (60, 'new', 1);
UPDATE {PARTS} SET {VALUE} = 'changed' WHERE {KEY} = 3;
"""


def rows(database: Database, table: str = TABLE) -> list[tuple[Any, ...]]:
    """Return the rows of a table as texts, in the order of the key."""
    return database.execute(f"SELECT t::text FROM {table} t ORDER BY {KEY}")
