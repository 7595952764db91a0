"""The sink of a PostgreSQL table: one transaction a batch, what is gone deleted by key, the rest copied and upserted.

An upsert, and not a delete and an insert: columns that only the target has keep their values, and what refers to its
rows is left alone.
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
from trueup.db.connection import Connection
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.errors import CheckFailed, TrueupError
from trueup.sinks.base import Document, Mark, Shards, SinkDown, SinkRejected, SourceTable
from trueup.sinks.keys import check_known, fixed_shard
from trueup.sinks.options import Options
from trueup.sinks.postgres_target import (
    INTEGERS,
    MARKS,
    Target,
    defined,
    ensure_target,
    identifier,
    listed,
    statements,
    target_name,
)

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

OPTIONS = ("table", "map", "moves")
# Classes of SQLSTATEs that speak of what is in a row: data, constraints, limits, and what a trigger raises.
_REFUSALS = ("22", "23", "54", "P0")


class PostgresSink:
    """Tables of a node. A copy in another process opens its own connection."""

    driver_only: ClassVar[bool] = False

    def __init__(self, node: Node, options: Options) -> None:
        self.node = node
        self._pattern = options.text("table", "{schema}.{table}")
        self._mapping = options.pairs("map")
        self._moves = options.yes_no("moves", True)
        options.end()
        self._targets: dict[str, Target] = {}
        self._connection: Connection | None = None
        # The temporary tables of the session, by source.
        self._batches: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "_batches": {}}

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Make the tables, or check those that are there and add the columns they lack."""
        names = [target_name(each, self._pattern) for each in tables]
        shared = sorted({display_name(*name) for name in names if names.count(name) > 1})
        if shared:
            raise CheckFailed(
                [f"several tables of the tube would go into {name}" for name in shared],
                cure="name them apart: ?table=copy.{schema}_{table}",
                node=self.node.name,
            )
        with self._errors():
            targets = [
                ensure_target(self._session(), each, name, self._mapping, routed=each.routed and self._moves)
                for each, name in zip(tables, names, strict=True)
            ]
        self._targets = {each.source.table: each for each in targets}
        self.close()

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """One transaction: what is gone is deleted, the rest upserted."""
        by_table: dict[str, list[Document]] = {}
        for document in batch:
            by_table.setdefault(document.table, []).append(document)
        with self._errors(batch):
            # Before the transaction: a batch that is refused must not take them along.
            batches = {table: self._batch(self._targets[table]) for table in by_table}
            with self._session().transaction():
                for table, documents in by_table.items():
                    target = self._targets[table]
                    self._delete(target, [each for each in documents if each.row is None])
                    self._upsert(target, batches[table], [each for each in documents if each.row is not None], mark)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        most: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """A page along the index of the key. Rows that were there before the sink have no mark, and are older."""
        target = self._targets[table]
        order = sql.SQL(", ").join(each.ordered for each in target.key)
        values: dict[str, Any] = {"seq": start_seq, "at": started_at, "most": most}
        where: list[sql.Composable] = [sql.SQL("true")]
        if target.routed and shards != "all":
            where.append(sql.SQL("trueup_shard = ANY (%(shards)s)"))
            values["shards"] = list(shards)
        if after is not None:
            edge = [each.edge(f"after{at}") for at, each in enumerate(target.key)]
            where.append(sql.SQL("({}) > ({})").format(order, sql.SQL(", ").join(edge)))
            values |= {f"after{at}": text for at, text in enumerate(after)}
        query = sql.SQL(statements()["older"]).format(
            target=target.name,
            texts=sql.SQL(", ").join(each.text for each in target.key),
            where=sql.SQL(" AND ").join(where),
            key=order,
        )
        with self._errors():
            rows = self._session().execute(query, values).fetchall()
        fixed = fixed_shard(shards, routed=target.routed)
        return [((shard or 0) if fixed is None else fixed, tuple(key)) for shard, *key in rows]

    def close(self) -> None:
        """End the session."""
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
        """What speaks of a row is a refusal, and names it if it can; everything else is waited out."""
        try:
            yield
        except (SinkDown, SinkRejected, CheckFailed):
            raise
        except (psycopg.Error, TrueupError, OSError) as error:
            told = error_from_server(error, self.node)
            if batch and _is_refusal(error):
                reasons = {batch[0].identity: told.message} if len(batch) == 1 else {}
                raise SinkRejected(told.message, reasons=reasons, node=self.node.name) from None
            if self._connection is not None and self._connection.broken:
                self.close()
            raise SinkDown(told.message, cure=told.cure, node=self.node.name) from None

    # --- what a batch does

    def _batch(self, target: Target) -> str:
        """The temporary table that takes a target's rows, made when it is first needed in a session."""
        session = self._session()
        if target.source.table not in self._batches:
            name = f"trueup_batch_{len(self._batches)}"
            columns = defined((to, kind) for _, to, kind in target.columns)
            session.execute(sql.SQL(statements()["batch"]).format(batch=sql.Identifier(name), columns=columns))
            self._batches[target.source.table] = name
        return self._batches[target.source.table]

    def _upsert(self, target: Target, batch: str, documents: Sequence[Document], mark: Mark) -> None:
        if not documents:
            return
        self._copy(target, batch, documents)
        # A key column of integers has one form only, and may be an identity, which cannot be updated.
        fixed = {each.name for each in target.key if each.type in INTEGERS}
        changed = [*(to for _, to, _ in target.columns if to not in fixed), *MARKS]
        upsert = sql.SQL(statements()["upsert"]).format(
            target=target.name,
            batch=sql.Identifier(batch),
            columns=listed(to for _, to, _ in target.columns),
            key=listed(target.arbiter),
            changed=sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(identifier(name)) for name in changed),
        )
        self._session().execute(upsert, {"seq": mark.seq, "at": mark.at})

    def _copy(self, target: Target, batch: str, documents: Sequence[Document]) -> None:
        check_known(target.source, documents)
        wanted = [name for name, _, _ in target.columns]
        columns = sql.SQL(", ").join(sql.Identifier(to) for _, to, _ in target.columns)
        copy = sql.SQL(statements()["copy"]).format(batch=sql.Identifier(batch), columns=columns)
        try:
            with self._session().cursor().copy(copy) as out:
                for each in documents:
                    row = each.row or {}
                    out.write_row([*[row.get(name) for name in wanted], each.shard])
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
        values: dict[str, Any] = {"shards": [each.shard for each in documents]}
        arrays = [sql.SQL("%(shards)s::bigint[]").format()]
        same = [sql.SQL("t.trueup_shard = x.shard").format()] if target.routed else []
        for at, column in enumerate(target.key):
            values[f"key{at}"] = [each.key[at] for each in documents]
            arrays.append(sql.SQL("{}::text[]").format(sql.Placeholder(f"key{at}")))
            same.append(column.equal(sql.Identifier("x", f"key{at}")))
        query = sql.SQL(statements()["delete"]).format(
            target=target.name,
            arrays=sql.SQL(", ").join(arrays),
            names=listed(["shard", *(f"key{at}" for at in range(len(target.key)))]),
            same=sql.SQL(" AND ").join(same),
        )
        self._session().execute(query, values)


def _is_refusal(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in _REFUSALS or (not state and isinstance(error, psycopg.DataError))


def _line_of(error: psycopg.Error) -> int:
    """The line of a COPY that an error is about; 0 if it does not say."""
    found = re.search(r"line (\d+)", error.diag.context or "")
    return int(found[1]) if found else 0
