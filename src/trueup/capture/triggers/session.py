"""A session with the node of the tubes: calls of the installed functions, and errors with node and cure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from trueup.config.address import join, parse
from trueup.config.model import Node
from trueup.config.settings import ExpressionSettings
from trueup.db.catalog import nearest_table
from trueup.db.connection import Connection, address_of
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code
from trueup.db.names import display_name, parse_table_name
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed, ConfigError, QueryError, TrueupError

# Short, because trigger names consist of the schema and the tube, and names are limited to 63 bytes.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,14}")
BIGINT = (-(2**63), 2**63 - 1)


def is_schema_name(name: str) -> bool:
    """Return whether tubes can be in a schema of this name."""
    return bool(_SCHEMA.fullmatch(name)) and not name.startswith("pg_")


class Session:
    """A connection for reading and writing, opened on first use."""

    def __init__(self, node: Node, schema: str, expressions: ExpressionSettings | None = None) -> None:
        if not is_schema_name(schema):
            raise ConfigError(
                f"invalid schema name for tubes: '{schema}'",
                cure="use at most 15 lower-case letters, digits and _; do not start with a digit or pg_",
            )
        self.node = node
        self.schema = schema
        # The functions that predicates, routings and queries may call.
        self.expressions = expressions or ExpressionSettings()
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """Return the connection, which is in autocommit mode."""
        if self._connection is None:
            connection = connect(self.node, application="trueup tube", read_only=False)
            try:
                # A new snapshot per statement: barriers need it, and reads never fail with a serialization error.
                connection.execute("SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0")
                check_schema(connection, self.schema, node=self.node.name)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether the connection is open and may hold locks."""
        return self._connection is not None and not self._connection.closed

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which releases the locks of the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def reading_node(self) -> Node:
        """Return the node to read rows from: the server that holds the locks, because a standby may lag behind."""
        settings, _ = parse(address_of(self.connection, application="trueup tube"))
        settings.pop("hostaddr", None)
        info = self.connection.info
        server = {"host": info.host, "port": str(info.port), "target_session_attrs": "primary"}
        return Node(self.node.name, join({**settings, **server}))

    def name(self, *parts: str) -> sql.Identifier:
        """Return a quoted name in the schema of the tubes."""
        return sql.Identifier(self.schema, *parts)

    def call(self, function: str, *positional: Any, **named: Any) -> Any:
        """Call an installed function and return its result."""
        for value in (*positional, *named.values()):
            if isinstance(value, int):
                check_range("the number", value, *BIGINT)
        arguments: list[sql.Composable] = [sql.Placeholder()] * len(positional)
        arguments += [sql.SQL("{} => %s").format(sql.Identifier(name)) for name in named]
        query = sql.SQL("SELECT {}({})").format(self.name(function), sql.SQL(", ").join(arguments))
        return self.rows(query, [*positional, *named.values()])[0][0]

    def rows(
        self, query: sql.Composed, values: Sequence[Any] | Mapping[str, Any] = (), *, table: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        with self.errors(table=table):
            cursor = self.connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def records(self, query: sql.Composed, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """Run a query and return its rows as dictionaries."""
        with self.errors(), self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, values or None).fetchall()

    @contextmanager
    def errors(self, *, table: str | None = None) -> Iterator[None]:
        """Convert errors of the driver; the hint of an installed function becomes the cure."""
        try:
            yield
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.InvalidSchemaName,
        ) as error:
            raise self._not_installed(error) from None
        except psycopg.Error as error:
            raise _with_hint(error_from_server(error, self.node, table=table), error.diag.message_hint) from None

    def _not_installed(self, error: psycopg.Error) -> TrueupError:
        text = error.diag.message_primary or ""
        # Version 3 has no column allow_functions.
        if not any(word in text for word in (f"{self.schema}.", f'"{self.schema}"', "allow_functions")):
            return _with_hint(error_from_server(error, self.node), error.diag.message_hint)
        return CheckFailed(
            [f"this version of the tube functions is not installed in the schema {self.schema} ({text})"],
            cure=f"run trueup tube install {self.node.name}"
            + (f" --schema {self.schema}" if self.schema != "tube" else ""),
            node=self.node.name,
        )

    def find_table(self, text: str, *, is_read: bool = True) -> str:
        """Return the quoted name of a table for regclass; raise CheckFailed with similar names if it does not exist.

        With `is_read`, raise CheckFailed also if the planner would run code of another role, see `foreign_code`.
        """
        if text.strip().isdigit():
            return text.strip()  # the OID of a dropped table
        parts = parse_table_name(text)
        with self.errors():
            for schema in parts[0].spellings():
                for table in parts[1].spellings():
                    name = sql.Identifier(schema, table).as_string(self.connection)
                    row = self.connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
                    if row and row[0]:
                        if is_read and (reasons := foreign_code(self.connection, schema, table, writes=False)):
                            raise CheckFailed(reasons, cure=FOREIGN_CODE_CURE, node=self.node.name)
                        return name
            shown = display_name(parts[0].text, parts[1].text)
            near = nearest_table(self.connection, shown)
        raise CheckFailed([f"the table {shown} does not exist{near}"], cure="check the name", node=self.node.name)


def check_shard(shard: int | None) -> None:
    """Raise CheckFailed if a shard is out of range."""
    if shard is not None:
        check_range("the shard", shard, *BIGINT)


def check_range(what: str, value: int, lowest: int, highest: int) -> None:
    """Raise CheckFailed if a number is out of range."""
    if not lowest <= value <= highest:
        raise CheckFailed([f"{what} {value} is out of range"], cure=f"use a number from {lowest} to {highest}")


def block(session: Session, name: str, **parts: sql.Composable) -> sql.Composed:
    """Return a statement of work.sql for the schema of the session."""
    text = load("trueup.capture.triggers", "work.sql")[name]
    return sql.SQL(text).format(schema=sql.Identifier(session.schema), **parts)


def _with_hint(error: TrueupError, hint: str | None) -> TrueupError:
    if hint and isinstance(error, QueryError):
        error.cure = hint
    return error
