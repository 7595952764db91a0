"""One session with the node whose tubes are worked on: calls of the installed functions, errors by name."""

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
from trueup.db.catalog import nearest_table
from trueup.db.connection import Connection, address_of
from trueup.db.names import display_name, parse_table_name
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed, ConfigError, QueryError, TrueupError

# Short: triggers are named after the schema and the tube, and a name has 63 bytes.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,14}")


class Session:
    """A connection that may write, opened when it is first needed."""

    def __init__(self, node: Node, schema: str) -> None:
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise ConfigError(
                f"'{schema}' cannot be the schema of tubes",
                cure="small letters, digits and _, at most 15, not beginning with a digit or pg_",
            )
        self.node = node
        self.schema = schema
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection, in autocommit."""
        if self._connection is None:
            self._connection = connect(self.node, application="trueup tube", read_only=False)
            # Every statement its own snapshot: barriers wait on it, and no reader ever fails a writer.
            self._connection.execute("SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0")
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a session, and so may be locks."""
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
        """A name in the schema of the tubes."""
        return sql.Identifier(self.schema, *parts)

    def call(self, function: str, *positional: Any, **given: Any) -> Any:
        """What a function of the installation returns."""
        arguments: list[sql.Composable] = [sql.Placeholder()] * len(positional)
        arguments += [sql.SQL("{} => %s").format(sql.Identifier(name)) for name in given]
        query = sql.SQL("SELECT {}({})").format(self.name(function), sql.SQL(", ").join(arguments))
        return self.rows(query, [*positional, *given.values()])[0][0]

    def rows(
        self, query: sql.Composed, values: Sequence[Any] | Mapping[str, Any] = (), *, table: str | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of a query; an error says what to do."""
        with self.errors(table=table):
            cursor = self.connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def records(self, query: sql.Composed, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query, by column."""
        with self.errors(), self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, values or None).fetchall()

    @contextmanager
    def errors(self, *, table: str | None = None) -> Iterator[None]:
        """Errors of the driver as ours; the hint of our own functions is the cure."""
        try:
            yield
        except psycopg.errors.UndefinedTable as error:
            raise self._not_installed(error) from None
        except psycopg.errors.UndefinedFunction as error:
            raise self._not_installed(error) from None
        except psycopg.errors.InvalidSchemaName as error:
            raise self._not_installed(error) from None
        except psycopg.Error as error:
            raise _with_hint(error_from_server(error, self.node, table=table), error.diag.message_hint) from None

    def _not_installed(self, error: psycopg.Error) -> TrueupError:
        text = error.diag.message_primary or ""
        if f"{self.schema}." not in text and f'"{self.schema}"' not in text:
            return _with_hint(error_from_server(error, self.node), error.diag.message_hint)
        return CheckFailed(
            [f"tubes of this version are not installed in the schema {self.schema} ({text})"],
            cure=f"trueup tube install {self.node.name}"
            + (f" --schema {self.schema}" if self.schema != "tube" else ""),
            node=self.node.name,
        )

    def find_table(self, text: str) -> str:
        """The quoted name of a table as a regclass takes it; or an error that names the one that was meant."""
        if text.strip().isdigit():
            return text.strip()  # a table that was dropped has only its number left
        parts = parse_table_name(text)
        with self.errors():
            for schema in parts[0].spellings():
                for table in parts[1].spellings():
                    name = sql.Identifier(schema, table).as_string(self.connection)
                    found = self.connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
                    if found and found[0]:
                        return name
            shown = display_name(parts[0].text, parts[1].text)
            near = nearest_table(self.connection, shown)
        raise CheckFailed([f"there is no table {shown}{near}"], cure="check the name", node=self.node.name)


def block(session: Session, name: str, **parts: sql.Composable) -> sql.Composed:
    """A statement of work.sql, in the schema of the tubes."""
    text = load("trueup.capture.triggers", "work.sql")[name]
    return sql.SQL(text).format(schema=sql.Identifier(session.schema), **parts)


def _with_hint(error: TrueupError, hint: str | None) -> TrueupError:
    if hint and isinstance(error, QueryError):
        error.cure = hint
    return error
