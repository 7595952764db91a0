"""Publications: what they publish of a table, one for the tables of a validation, and tables of trueup in them.

A table that trueup creates in a database with a publication FOR ALL TABLES stops the subscribers that lack this table.
Such a publication may also be created later. Then the server refuses updates and deletes in tables without a replica
identity: every table of trueup has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from psycopg import sql
from psycopg.rows import dict_row
from typing_extensions import LiteralString

from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.errors import CheckFailed

CURE = "let the subscription use a publication that names tables or schemas (FOR TABLES IN SCHEMA …)"
_OPERATIONS = ("insert", "update", "delete", "truncate")
# Changes of partitions are reported as changes of the partitioned table.
_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"


@dataclass(frozen=True)
class Published:
    """What one publication publishes of one table."""

    publication: str
    oid: int
    operations: tuple[str, ...]
    # Only rows that meet this condition, and only these columns; "" and None: all.
    filter: str
    columns: tuple[str, ...] | None
    # A partitioned table whose changes are published with the names of its partitions.
    as_partitions: bool
    # Whether partitions have row filters or column lists of their own.
    limits_partitions: bool
    # Another text after every alteration of the publication that concerns the table, also after one taken back.
    version: str
    # Transactions that alter it and are not visible yet, or were rolled back.
    writers: tuple[int, ...] = field(default=(), compare=False)

    def problem(self, key: Sequence[str], filter: str = "") -> str:
        """Return which changes of the table are not published; "" if all are.

        A row filter is no problem if it equals `filter`: then only these rows are compared.
        """
        name = f"publication {self.publication}"
        missing = [operation for operation in _OPERATIONS if operation not in self.operations]
        if missing:
            return f"{name} does not publish {', '.join(missing)}; run ALTER PUBLICATION … SET (publish = …)"
        if self.as_partitions:
            return (
                f"{name} publishes partitions, not the table; run ALTER PUBLICATION … ADD TABLE and … SET"
                " (publish_via_partition_root = true)"
            )
        if self.filter and self.filter != filter:
            return f"{name} has the row filter {self.filter}, so changes of other rows are not seen"
        lost = [column for column in key if self.columns is not None and column not in self.columns]
        return f"{name} does not publish the key column {lost[0]}" if lost else ""


@dataclass(frozen=True)
class Carried:
    """The rows and columns of a table that the subscriptions replicate ("" and None: all), and where that is set."""

    filter: str = ""
    columns: tuple[str, ...] | None = None
    publications: tuple[str, ...] = ()
    limits_partitions: bool = False


def carried_by(published: list[Published]) -> Carried:
    """Merge publications: a row is replicated if any of them publishes it."""
    filters = list(dict.fromkeys(each.filter for each in published))
    filter = "" if "" in filters else " OR ".join(f"({text})" if len(filters) > 1 else text for text in filters)
    columns = dict.fromkeys(name for each in published for name in each.columns or ())
    return Carried(
        filter,
        None if not published or any(each.columns is None for each in published) else tuple(columns),
        tuple(each.publication for each in published),
        any(each.limits_partitions for each in published),
    )


def read_published(
    connection: Connection, publications: Iterable[str], oids: Iterable[int]
) -> dict[tuple[str, int], Published]:
    """Return what the publications publish of the tables; pairs that are not in the result are not published."""
    names = list(publications)
    if not names:
        return {}
    statement = "published" if connection.info.server_version >= 150000 else "published_before_15"
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_statement(statement), {"publications": names, "oids": list(oids)}).fetchall()
    return {
        (row["publication"], row["oid"]): Published(
            row["publication"],
            row["oid"],
            tuple(operation for operation in _OPERATIONS if row[f"pub{operation}"]),
            row["filter"] or "",
            None if row["columns"] is None else tuple(row["columns"]),
            row["is_partitioned"] and not (row["pubviaroot"] and row["is_member"]),
            row["limits_partitions"],
            row["version"],
            tuple(int(xid) for xid in row["writers"] if xid),
        )
        for row in rows
    }


def publication_exists(connection: Connection, name: str) -> bool:
    """Return whether a publication exists."""
    return connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]).fetchone() is not None


def make_publication(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> None:
    """Create a publication of exactly these tables and all their changes, or change the existing one to them."""
    publication = sql.Identifier(name)
    with connection.transaction():
        complete = connection.execute(_statement("options"), {"publication": name}).fetchone()
        if complete is None:
            connection.execute(sql.SQL("CREATE PUBLICATION {} WITH (" + _OPTIONS + ")").format(publication))
        elif not complete[0]:
            connection.execute(sql.SQL("ALTER PUBLICATION {} SET (" + _OPTIONS + ")").format(publication))
        rows = connection.execute(_statement("members"), {"publication": name}).fetchall()
        members = {(str(schema), str(table)): bool(is_whole) for schema, table, is_whole in rows}
        whole = {table for table, is_whole in members.items() if is_whole}
        # A table with a row filter or a column list is dropped and added again.
        for verb, names in (("DROP", set(members) - whole | whole - set(tables)), ("ADD", set(tables) - whole)):
            for table in sorted(names):
                # Without ONLY, tables that inherit from it are added or dropped with it.
                change = sql.SQL(f"ALTER PUBLICATION {{}} {verb} TABLE ONLY {{}}")
                connection.execute(change.format(publication, sql.Identifier(*table)))


def ensure_identities(connection: Connection, schema: str) -> None:
    """Give every table of a schema of trueup that has no primary key the replica identity FULL."""
    query = _statement("without_identity")
    for name in connection.execute(query, {"schema": schema}).fetchall():
        connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(*name)))


def published_problem(connection: Connection, table: str) -> str:
    """Return which publication contains a table of trueup, with its effect and cure; an empty text if none does."""
    row = connection.execute(_statement("published_by"), {"table": table}).fetchone()
    if row is None:
        return ""
    return f"publication {row[0]} of database {row[1]} contains {table}: its subscribers stop if they lack it; {CURE}"


def refuse_column_lists(connection: Connection, schema: str) -> None:
    """Raise CheckFailed if the column list of a publication makes deletes fail in a table of a schema of trueup."""
    if connection.info.server_version < 150000:
        return
    rows = connection.execute(_statement("limited"), {"schema": schema}).fetchall()
    if rows:
        raise CheckFailed(
            [
                f"publication {name} has a column list for {table}: the server refuses to delete rows"
                for name, table in rows
            ],
            cure="; ".join(f"run ALTER PUBLICATION {name} DROP TABLE {table}" for name, table in rows),
        )


def drop_from_publication(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> None:
    """Take tables out of a publication, if it has them."""
    rows = connection.execute(_statement("members"), {"publication": name}).fetchall()
    for table in sorted({(str(schema), str(table)) for schema, table, _ in rows} & set(tables)):
        connection.execute(
            sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(sql.Identifier(name), sql.Identifier(*table))
        )


def all_tables_problem(connection: Connection, table: str) -> str:
    """Return why creating `table` would stop subscribers; an empty text if it would not, or if the table exists."""
    row = connection.execute(_statement("published_for_all"), {"table": table}).fetchone()
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


def _statement(name: str) -> LiteralString:
    return load("trueup.capture.log", "publications.sql")[name]
