"""Publications: one for the tables of a validation, and a check for publications FOR ALL TABLES.

A table that trueup creates in a database with a publication FOR ALL TABLES stops the subscribers that lack this table.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.errors import CheckFailed

CURE = "let the subscription use a publication that names tables or schemas (FOR TABLES IN SCHEMA …)"


def make_publication(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> None:
    """Create a publication of exactly these tables, or change the existing one to them."""
    statements = load("trueup.capture.log", "slot.sql")
    with connection.transaction():
        if not connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]).fetchone():
            # Changes of partitions are reported as changes of the partitioned table.
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} WITH (publish_via_partition_root = true)").format(sql.Identifier(name))
            )
        rows = connection.execute(statements["published"], {"publication": name}).fetchall()
        published = {(str(schema), str(table)) for schema, table in rows}
        for verb, names in (("ADD", set(tables) - published), ("DROP", published - set(tables))):
            for table in sorted(names):
                connection.execute(
                    sql.SQL(f"ALTER PUBLICATION {{}} {verb} TABLE {{}}").format(
                        sql.Identifier(name), sql.Identifier(*table)
                    )
                )


def all_tables_problem(connection: Connection, table: str) -> str:
    """Return why creating `table` would stop subscribers; an empty text if it would not, or if the table exists."""
    statement = load("trueup.capture.log", "slot.sql")["published_for_all"]
    row = connection.execute(statement, {"table": table}).fetchone()
    if row is None:
        return ""
    return (
        f"publication {row[0]} of database {row[1]} publishes all tables: its subscribers would stop at {table}, which"
        " trueup would create there and which they do not have"
    )


def refuse_all_tables(connection: Connection, table: str) -> None:
    """Raise CheckFailed if creating `table` would stop subscribers of a publication FOR ALL TABLES."""
    problem = all_tables_problem(connection, table)
    if problem:
        raise CheckFailed([problem], cure=CURE)
