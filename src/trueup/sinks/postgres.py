"""The sink of PostgreSQL tables: one transaction per batch, which deletes by key and upserts the other rows.

Rows are upserted, not deleted and inserted: additional columns of the target keep their values, and foreign keys that
reference its rows are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.db.catalog import read_table
from trueup.db.connection import Connection
from trueup.db.durable import durable_transaction, warn_unsafe
from trueup.db.foreign_code import lock_checked
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.errors import CheckFailed, TrueupError
from trueup.rows.types import type_from_sql
from trueup.rows.write.copy import copy_into, send_rows
from trueup.rows.write.delete import delete_matching
from trueup.rows.write.stage import stage
from trueup.rows.write.upsert import insert_or_update
from trueup.sinks.base import Document, Mark, Shards, SinkDown, SinkRejected, SourceTable, StoredTable
from trueup.sinks.keys import check_known, fixed_shard
from trueup.sinks.once import Once
from trueup.sinks.options import Options
from trueup.sinks.postgres_target import (
    MARKS,
    Target,
    ensure_target,
    source_columns,
    statements,
    target_name,
)

if TYPE_CHECKING:
    from typing_extensions import LiteralString

OPTIONS = ("table", "map", "moves")
# Classes of SQLSTATEs caused by the content of a row: data, constraints, limits, and errors raised by triggers.
_REFUSALS = ("22", "23", "54", "P0")


class PostgresSink:
    """Tables of a node. Each copy of the sink opens its own connection."""

    driver_only: ClassVar[bool] = False
    splits_shards: ClassVar[bool] = True

    def __init__(self, node: Node, options: Options) -> None:
        self.node = node
        self._pattern = options.text("table", "{schema}.{table}")
        self._mapping = options.pairs("map")
        self._moves = options.yes_no("moves", True)
        options.end()
        self._targets: dict[str, Target] = {}
        self._connection: Connection | None = None
        self._warns = Once()
        # Fingerprints of the targets, by source table: see `lock_checked`.
        self._checked: dict[str, str | None] = {}
        # The temporary tables of the session, by source table.
        self._batches: dict[str, sql.Identifier] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "_batches": {}}

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create the tables, or check existing ones and add missing columns."""
        names = [target_name(source, self._pattern) for source in tables]
        shared = sorted({display_name(*name) for name in names if names.count(name) > 1})
        if shared:
            raise CheckFailed(
                [f"several tables of the tube have the target {name}" for name in shared],
                cure="use ?table=copy.{schema}_{table}",
                node=self.node.name,
            )
        with self._errors():
            session = self._session()
            if self._warns():
                warn_unsafe(session, self.node.name)
            targets = [
                ensure_target(session, source, name, self._mapping, routed=source.routed and self._moves)
                for source, name in zip(tables, names, strict=True)
            ]
        self._targets = {target.source.table: target for target in targets}
        self.close()

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Delete and upsert in one transaction."""
        by_table: dict[str, list[Document]] = {}
        for document in batch:
            by_table.setdefault(document.table, []).append(document)
        with self._errors(batch):
            # Before the transaction, so that a rollback keeps the temporary tables.
            batches = {table: self._batch(self._targets[table]) for table in by_table}
            with durable_transaction(self._session()):
                for table, documents in by_table.items():
                    target = self._targets[table]
                    known = self._checked.get(table)
                    self._checked[table] = lock_checked(self._session(), target.schema, target.table, known=known)
                    self._delete(target, [document for document in documents if document.row is None])
                    kept = [document for document in documents if document.row is not None]
                    self._upsert(target, batches[table], kept, mark)

    def stored(self, source: SourceTable) -> StoredTable:
        """Return the target of a table."""
        schema, table = target_name(source, self._pattern)
        with self._errors():
            current = read_table(self._session(), schema, table)
        shown = display_name(schema, table)
        if current is None:
            raise CheckFailed([f"the sink has no table {shown}"], cure="start trueup tube run", node=self.node.name)
        columns = {name: to for name, to, _ in source_columns(source, self._mapping)}
        if lacking := sorted(to for to in columns.values() if current.column(to) is None):
            reason = f"the table {shown} has no column {lacking[0]}"
            raise CheckFailed([reason], cure="start trueup tube run", node=self.node.name)
        kinds = dict(source.columns)
        types = [(kinds[name], current.column(columns[name])) for name in source.key]
        has_text_keys = any(column is not None and is_text(column.type) and not is_text(kind) for kind, column in types)
        return StoredTable(self.node, shown, columns, has_text_keys, source.routed and self._moves)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return a page along the index of the key. Rows without a mark existed before and are older."""
        target = self._targets[table]
        order = sql.SQL(", ").join(column.ordered for column in target.key)
        values: dict[str, Any] = {"seq": start_seq, "at": started_at, "most": limit}
        where: list[sql.Composable] = [sql.SQL("true")]
        if target.routed and shards != "all":
            where.append(sql.SQL("trueup_shard = ANY (%(shards)s)"))
            values["shards"] = list(shards)
        if after is not None:
            edge = [column.edge(f"after{index}") for index, column in enumerate(target.key)]
            where.append(sql.SQL("({}) > ({})").format(order, sql.SQL(", ").join(edge)))
            values |= {f"after{index}": text for index, text in enumerate(after)}
        query = sql.SQL(statements()["older"]).format(
            target=target.name,
            texts=sql.SQL(", ").join(column.text for column in target.key),
            where=sql.SQL(" AND ").join(where),
            key=order,
        )
        with self._errors():
            rows = self._session().execute(query, values).fetchall()
        fixed = fixed_shard(shards, routed=target.routed)
        return [((shard or 0) if fixed is None else fixed, tuple(key)) for shard, *key in rows]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._batches = {}

    def _session(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._batches = {}
            self._connection = connect(self.node, application="trueup tube sink", read_only=False)
            self._connection.execute("SET statement_timeout = 0")
        return self._connection

    @contextmanager
    def _errors(self, batch: Sequence[Document] = ()) -> Iterator[None]:
        """Convert errors: those caused by a row to SinkRejected, with its identity if known, all others to SinkDown."""
        try:
            yield
        except (SinkDown, SinkRejected, CheckFailed):
            raise
        except (psycopg.Error, TrueupError, OSError) as error:
            failure = error_from_server(error, self.node)
            if batch and _is_refusal(error):
                reasons = {batch[0].identity: failure.message} if len(batch) == 1 else {}
                raise SinkRejected(failure.message, reasons=reasons, node=self.node.name) from None
            if self._connection is not None and self._connection.broken:
                self.close()
            raise SinkDown(failure.message, cure=failure.cure, node=self.node.name) from None

    # Writing a batch.

    def _batch(self, target: Target) -> sql.Identifier:
        """Return the staging table of a target, created when the session first needs it."""
        session = self._session()
        table = target.source.table
        if table not in self._batches:
            name = sql.Identifier(target.schema, target.table)
            self._batches[table] = stage(session, name, target.staged, keep=True)
        return self._batches[table]

    def _upsert(self, target: Target, batch: sql.Identifier, documents: Sequence[Document], mark: Mark) -> None:
        if not documents:
            return
        self._copy(target, batch, documents)
        # A key column of integers has one form only, and may be an identity, which cannot be updated.
        fixed = {column.name for column in target.key if type_from_sql(column.type).integer_bytes}
        insert_or_update(
            self._session(),
            target.name,
            batch,
            columns=target.staged,
            key=target.arbiter,
            updated=[*(to for _, to, _ in target.columns if to not in fixed), *MARKS],
            constants={"trueup_seq": mark.seq, "trueup_at": mark.at},
        )

    def _copy(self, target: Target, batch: sql.Identifier, documents: Sequence[Document]) -> None:
        check_known(target.source, documents)
        # Key columns get the text of the key, by which `_delete` finds rows. If the target column is text, the value of
        # the row can have another text: char(n) is padded, boolean and floats are written differently.
        others = [name for name, _, _ in target.columns[len(target.key) :]]
        rows = ([*document.key, *map((document.row or {}).get, others), document.shard] for document in documents)
        try:
            send_rows(self._session(), copy_into(batch, target.staged), rows)
        except psycopg.Error as error:
            line = _line_of(error)
            if not _is_refusal(error) or not 0 < line <= len(documents):
                raise
            message = error_from_server(error, self.node).message
            reasons = {documents[line - 1].identity: message}
            raise SinkRejected(message, reasons=reasons, node=self.node.name) from None

    def _delete(self, target: Target, documents: Sequence[Document]) -> None:
        if not documents:
            return
        lists: dict[str, tuple[LiteralString, list[Any]]] = {
            "shard": ("bigint", [document.shard for document in documents])
        }
        same: list[sql.Composable] = [sql.SQL("t.trueup_shard = x.shard")] if target.routed else []
        for place, column in enumerate(target.key):
            lists[f"key{place}"] = ("text", [document.key[place] for document in documents])
            same.append(column.equal(sql.Identifier("x", f"key{place}")))
        delete_matching(self._session(), target.name, lists, sql.SQL(" AND ").join(same))


def is_text(kind: str) -> bool:
    """Return whether values of a type are texts."""
    return type_from_sql(kind).hash == "collated"


def _is_refusal(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in _REFUSALS or (not state and isinstance(error, psycopg.DataError))


def _line_of(error: psycopg.Error) -> int:
    """Return the line of a COPY that an error names; 0 if it names none."""
    match = re.search(r"line (\d+)", error.diag.context or "")
    return int(match[1]) if match else 0
