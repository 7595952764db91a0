"""The meta database: the state of validations, in the schema `trueup` of a node, committed in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from trueup.capture.log.publications import ensure_identities, refuse_all_tables
from trueup.config.model import Config, Node
from trueup.db.connection import Connection
from trueup.db.database_identity import identity
from trueup.db.drop_schema import drop_schema_if_empty
from trueup.db.durable import durable_transaction
from trueup.db.node import connect, error_from_server, pin
from trueup.db.private import install_privately
from trueup.db.statements import load
from trueup.db.storable import with_storable
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed, ConfigError, TrueupError
from trueup.proof import store
from trueup.verbs.validate.settings import Settings


@dataclass(frozen=True)
class Stored:
    """The row of one validation in the meta database."""

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
    servers: dict[str, dict[str, Any]]
    token: str
    token_end: int | None
    round: int
    # The number of the last request to change tables, and of the last one that a process has applied.
    requests: int
    requests_applied: int
    # What runs it: its name (local, spark), and with Spark its batches, jobs and rates.
    engine: dict[str, Any]
    # With both sides: the position before which all changes of the target are judged, the mark in its log, and how many
    # changes were of others, and of the syncer.
    target_position: int | None
    target_token: str
    target_token_end: int | None
    target_others: int
    target_applied: int
    target_at: datetime | None
    target_round: int
    # The number of the last watch, and of the last one that the process knows: see `proving.record`.
    watch: int
    watch_known: int

    @property
    def has_begun(self) -> bool:
        """Whether the validation was once started successfully."""
        return self.position is not None or self.gap is not None

    @property
    def needs_new_start(self) -> bool:
        """Whether reading starts at a new position: at the first start, and after changes were lost."""
        return self.position is None or bool(self.gap and "to" not in self.gap)


_NO_TIMEOUTS = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0"


class Meta:
    """One session with the meta database, in autocommit; `transaction` groups statements."""

    def __init__(self, node: Node, *, application: str = "trueup validate", read_only: bool = False) -> None:
        self.node = node
        self.connection: Connection = connect(node, application=application, read_only=read_only)
        self.connection.execute(_NO_TIMEOUTS)
        try:
            with self.errors():
                check_schema(self.connection, "trueup", node=node.name)
        except BaseException:
            self.connection.close()
            raise

    def allow_writes(self) -> None:
        """Let a session that was opened to read write as well."""
        pin(self.connection, read_only=False)
        self.connection.execute(_NO_TIMEOUTS)

    def close(self) -> None:
        """Close the session, which releases the lock of the validation."""
        self.connection.close()

    def make(self) -> None:
        """Create the tables that do not exist yet."""
        if self.value("is_made") and store.is_made(self.connection):
            # A role that may only use the tables needs no right to create them.
            return

        def create_objects() -> None:
            refuse_all_tables(self.connection, "trueup.validation")
            self.connection.execute(load("trueup.verbs.validate", "meta.sql")["make"])
            store.make(self.connection)
            ensure_identities(self.connection, "trueup")

        with self.errors():
            install_privately(self.connection, "trueup", create_objects)

    def delete(self, name: str) -> None:
        """Delete a validation; with the last one, drop the tables, and the schema if nothing else is in it."""
        with self.transaction():
            # No validation is created meanwhile.
            self.connection.execute("LOCK TABLE trueup.validation IN EXCLUSIVE MODE")
            self.rows("delete", name=name)
            if self.rows("names"):
                return
            # A role that only uses the tables cannot drop them.
            with suppress(psycopg.errors.InsufficientPrivilege), self.connection.transaction():
                store.drop(self.connection)
                self.connection.execute(load("trueup.verbs.validate", "meta.sql")["drop_tables"])
            drop_schema_if_empty(self.connection, "trueup")

    def apply_requests(self, name: str) -> Stored:
        """Remove and restart tables as requested; return the settings that belong to it. Needs the lock, or its row."""
        with self.transaction():
            self.rows("lock_row", name=name)
            restarted = [row["source"] for row in self.rows("tables", name=name) if row["requested"] == "restart"]
            store.void(self.connection, name, "it was restarted", restarted)
            for statement in ("forget_pending", "forget_errors", "remove_tables", "restart_tables"):
                self.rows(statement, name=name)
            return self.need(name)

    def exists(self) -> bool:
        """Return whether the node has tables of validations."""
        return bool(self.value("exists"))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise driver errors as errors of trueup, with the name of the node."""
        try:
            yield
        except psycopg.Error as error:
            raise error_from_server(error, self.node) from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the statements of the block in one transaction, which is on the disk when this returns."""
        with self.errors(), durable_transaction(self.connection):
            yield

    def rows(self, statement: str, file: str = "meta.sql", **values: Any) -> list[dict[str, Any]]:
        """Run a named statement and return its rows."""
        with self.errors(), self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(load("trueup.verbs.validate", file)[statement], with_storable(self.connection, values))
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, file: str = "meta.sql", **values: Any) -> Any:
        """Run a named statement and return the first column of its first row."""
        return next(iter(self.rows(statement, file, **values)[0].values()))

    def affected(self, statement: str, file: str, **values: Any) -> int:
        """Run a named statement and return the number of rows it changed."""
        with self.errors():
            return self.connection.execute(load("trueup.verbs.validate", file)[statement], values).rowcount

    def many(self, statement: str, lines: list[dict[str, Any]]) -> None:
        """Run a named statement once for each line of values, without waiting for each answer."""
        if lines:
            with self.errors(), self.connection.cursor() as cursor:
                cursor.executemany(load("trueup.verbs.validate", "meta.sql")[statement], lines)

    def get(self, name: str) -> Stored | None:
        """Return the validation `name`, or None if it does not exist."""
        rows = self.rows("get", name=name)
        return Stored(**{**rows[0], "settings": Settings.from_json(rows[0]["settings"])}) if rows else None

    def need(self, name: str) -> Stored:
        """Return the validation `name`, or raise an error that lists the existing ones."""
        stored = self.get(name)
        if stored is None:
            names = ", ".join(row["name"] for row in self.rows("names")) or "none"
            raise ConfigError(
                f"validation {name} does not exist on node {self.node.name}",
                cure=f"check the name (existing validations: {names})",
            )
        return stored

    def take_lock(self, name: str) -> None:
        """Take the lock that only the process running the validation holds; it ends with the session."""
        if not self.affected("lock", "meta.sql", name=name):
            self.need(name)
            raise CheckFailed(
                [f"validation {name} is already running"],
                cure=f"see trueup validate status {name}, or stop it with trueup validate stop {name}",
            )

    def request_stop(self, name: str) -> bool:
        """Request the validation to stop; return whether it is running.

        A starting process clears `wanted` and takes the lock in one transaction, and both transactions lock the row of
        the validation first: the process either starts after this check, or it is running and gets the request.
        """
        with self.transaction():
            self.rows("want", name=name, wanted="stop")
            return self.is_running(name)

    def is_running(self, name: str) -> bool:
        """Return whether a session holds the lock of the validation."""
        return bool(self.value("is_running", name=name))


@contextmanager
def open_meta(node: Node, *, read_only: bool = False) -> Iterator[Meta]:
    """Open a session with the meta database on a node."""
    meta = Meta(node, read_only=read_only)
    try:
        yield meta
    finally:
        meta.close()


@contextmanager
def meta_of(config: Config, name: str, meta_node: str = "", *, read_only: bool = False) -> Iterator[Meta]:
    """Open the meta database that stores a validation: on the given node, else on the only node that has it."""
    errors: list[str] = []
    with ExitStack() as sessions:
        if meta_node:
            (node,) = meta_nodes(config, meta_node)
            meta = sessions.enter_context(open_meta(node, read_only=read_only))
            found = [meta] if _has(meta, name) else []
        else:
            found, errors = _metas_with(config, name, sessions)
        if len(found) > 1:
            names = " and ".join(meta.node.name for meta in found)
            raise CheckFailed(
                [f"validation {name} exists in the meta databases on {names}: they are independent of each other"],
                cure="name the node of its meta database with --meta",
            )
        if found:
            if not (meta_node or read_only):
                found[0].allow_writes()
            yield found[0]
            return
    nodes = ", ".join(node.name for node in meta_nodes(config, meta_node))
    raise CheckFailed(
        [f"validation {name} does not exist on {nodes}" + (f" ({'; '.join(errors)})" if errors else "")],
        cure="name the node of its meta database with --meta, or create it with trueup validate start",
    )


def find_validation(config: Config, name: str) -> tuple[Node, ...]:
    """Return the nodes whose meta databases have a validation of this name; those that do not answer are left out."""
    with ExitStack() as sessions:
        return tuple(meta.node for meta in _metas_with(config, name, sessions)[0])


def _metas_with(config: Config, name: str, sessions: ExitStack) -> tuple[list[Meta], list[str]]:
    """Open the meta databases that have a validation of this name; return also the errors of nodes that do not answer.

    They can only be read. Names of nodes may stand for the same database, which is opened once.
    """
    found: dict[str, Meta] = {}
    errors: list[str] = []
    for node in meta_nodes(config):
        try:
            with ExitStack() as opened:
                meta = opened.enter_context(open_meta(node, read_only=True))
                if _has(meta, name) and (database := identity(meta.connection)) not in found:
                    found[database] = meta
                    sessions.push(opened.pop_all())
        except TrueupError as error:
            errors.append(str(error))
    return list(found.values()), errors


def _has(meta: Meta, name: str) -> bool:
    return meta.exists() and meta.get(name) is not None


def meta_nodes(config: Config, meta_node: str = "") -> tuple[Node, ...]:
    """Return the nodes that may hold the meta database: the given one, else all."""
    return config.select(names=[meta_node] if meta_node else list(config.nodes), at_least=1)
