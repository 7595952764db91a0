"""The meta database: what a validation knows lives in the schema `trueup` of a node, and is committed all at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from trueup.capture.log.publications import refuse_all_tables
from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.validate.settings import Settings

if TYPE_CHECKING:
    import psycopg

    from trueup.config.model import Node


@dataclass(frozen=True)
class Stored:
    """A validation as the meta database has it."""

    name: str
    settings: Settings
    slot: str
    publication: str
    owns_publication: bool
    state: str
    reason: str
    wanted: str
    created_at: datetime
    started_at: datetime | None
    heard_at: datetime | None
    began: int | None
    position: int | None
    validated: int | None
    validated_at: datetime | None
    syncer: int | None
    upstream: int | None
    lag_seconds: float | None
    retained: int | None
    has_reached: bool
    gap: dict[str, Any] | None


class Meta:
    """One session with the meta database, in autocommit; `together` is one transaction."""

    def __init__(self, node: Node, *, application: str = "trueup validate", read_only: bool = False) -> None:
        self.node = node
        self.connection: Connection = connect(node, application=application, read_only=read_only)
        self.connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")

    def close(self) -> None:
        """End the session, and the lock with it."""
        self.connection.close()

    def make(self) -> None:
        """The tables, where they are not there yet."""
        with self.errors(), self.connection.transaction():
            # Two that begin at the same time would both try.
            self.connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('trueup validate make', 0))")
            if next(iter(self.rows("is_made")[0].values())):
                # Whoever may only use them needs no right to make them.
                return
            refuse_all_tables(self.connection, "trueup.validation")
            self.connection.execute(load("trueup.verbs.validate", "meta.sql")["make"])

    def exists(self) -> bool:
        """Whether there are tables of validations."""
        return bool(next(iter(self.rows("exists")[0].values())))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the driver as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise error_from_server(error, self.node) from None

    @contextmanager
    def together(self) -> Iterator[None]:
        """All or nothing."""
        with self.errors(), self.connection.transaction():
            yield

    def rows(self, block: str, file: str = "meta.sql", **values: Any) -> list[dict[str, Any]]:
        """The rows of a named statement."""
        with self.errors(), self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(load("trueup.verbs.validate", file)[block], values)
            return cursor.fetchall() if cursor.description else []

    def many(self, block: str, file: str, lines: list[dict[str, Any]]) -> None:
        """One statement for each of the lines."""
        if lines:
            with self.errors(), self.connection.cursor() as cursor:
                cursor.executemany(load("trueup.verbs.validate", file)[block], lines)

    def get(self, name: str) -> Stored | None:
        """The validation of that name."""
        found = self.rows("get", name=name)
        return _stored(found[0]) if found else None

    def need(self, name: str) -> Stored:
        """The same, or an error that names those that are there."""
        found = self.get(name)
        if found is None:
            names = ", ".join(row["name"] for row in self.rows("names")) or "none"
            raise ConfigError(f"there is no validation {name} on {self.node.name}", cure=f"there are: {names}")
        return found

    def take_lock(self, name: str) -> None:
        """Be the one that runs it; the lock ends with the session."""
        if not next(iter(self.rows("lock", name=name)[0].values())):
            raise CheckFailed(
                [f"the validation {name} is running already"],
                cure=f"see trueup validate status {name}, or end it with trueup validate stop {name}",
            )

    def is_running(self, name: str) -> bool:
        """Whether somebody has the lock."""
        return bool(next(iter(self.rows("is_running", name=name)[0].values())))


def _stored(row: Mapping[str, Any]) -> Stored:
    return Stored(**{**row, "settings": Settings.from_json(row["settings"])})


def as_json(value: Any) -> Any:
    """For a column of type jsonb."""
    return Jsonb(value, dumps=lambda given: json.dumps(given, ensure_ascii=False))
