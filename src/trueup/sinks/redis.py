"""The Redis sink: `mode=delete` removes the cache entries of touched rows, `mode=set` keeps rows as JSON.

With `set`, two keys per table list the documents and their marks: a sorted set, whose members are in byte order, for
pages, and a hash. A server writes a part of a batch in one transaction. A cluster has no transactions over slots: an
entry is listed before it is written and unlisted after it is deleted, and a batch that fails is repeated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from trueup.config.secrets import mask
from trueup.errors import CheckFailed
from trueup.sinks.base import Document, Identity, Mark, Shards, SinkDown, SinkRejected, SourceTable
from trueup.sinks.documents import JsonRows
from trueup.sinks.keys import NEWEST, Place, Template, fixed_shard, is_older, key_parts, key_text
from trueup.sinks.once import Once
from trueup.sinks.options import Options
from trueup.sinks.redis_client import parse_redis

if TYPE_CHECKING:
    from trueup.sinks.redis_client import Client

_log = logging.getLogger(__name__)

Command: TypeAlias = "Sequence[str | bytes | int]"

_PART = 2_000
_PART_BYTES = 16 << 20
_LARGEST = 512 << 20


class RedisSink:
    """Entries of a Redis server or cluster, named by a template."""

    driver_only: ClassVar[bool] = False
    splits_shards: ClassVar[bool] = True

    def __init__(self, url: str, options: Options) -> None:
        self.address = parse_redis(url, options)
        self._mode = options.choice("mode", "delete", "set")
        self._template = Template(options.text("key", "{table}:{key}"))
        self._ttl = options.number("ttl", 0)
        self._moves = options.yes_no("moves", True)
        self._largest = options.number("largest", _LARGEST, least=1)
        options.end()
        self._tables: dict[str, SourceTable] = {}
        self._client: Client | None = None
        self._warns = Once()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Check the template, which must not name two documents alike, and the connection. Nothing is created."""
        self._template.check(tables, moves=self._mode == "set" and self._moves)
        self._tables = {source.table: source for source in tables}
        with self._errors():
            self._connected().ping()
            if self._warns() and not self.address.is_cluster:
                self._warn_unsafe()
        self.close()

    def _warn_unsafe(self) -> None:
        """Log a warning if a restart of the server takes back what was acknowledged; its settings may be hidden."""
        from redis.exceptions import ResponseError

        client: Any = self._connected()
        try:
            settings = {**client.config_get("appendonly"), **client.config_get("save")}
        except ResponseError:
            return
        # Without any file, a restart empties a cache, which is correct for `mode=delete`.
        if settings.get("appendonly") == "no" and (self._mode == "set" or settings.get("save")):
            _log.warning(
                "the Redis server %s has no append-only file: a restart takes back writes that were acknowledged; set"
                " appendonly yes and appendfsync always, or run a backfill after a restart",
                self.address,
            )

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Write a batch in parts of bounded size. Repeating a part changes nothing."""
        rows = {table: JsonRows(self._tables[table]) for table in {document.table for document in batch}}
        part: list[tuple[Document, bytes]] = []
        size = 0
        too_large = {}
        for document in batch:
            is_put = self._mode == "set" and document.row is not None
            body = rows[document.table].text(document.row or {}).encode() if is_put else b""
            if len(body) > self._largest:
                too_large[document.identity] = f"{len(body):,} bytes; the limit is {self._largest:,}"
                continue
            part.append((document, body))
            size += len(body)
            if len(part) >= _PART or size >= _PART_BYTES:
                self._send(part, mark)
                part, size = [], 0
        self._send(part, mark)
        if too_large:
            raise SinkRejected("documents are too large for Redis", reasons=too_large)

    def know(self, tables: Sequence[SourceTable]) -> None:
        """Check that rows are stored, and not only removed."""
        if self._mode != "set":
            reason = "a Redis sink with mode=delete has no documents of its own: programs fill the cache"
            raise CheckFailed([reason], cure="use mode=set, as trueup tube run does")
        if self._ttl:
            raise CheckFailed(["documents with a ttl expire, so they are not complete"], cure="leave out ttl")
        self._tables = {source.table: source for source in tables}

    def differing(self, batch: Sequence[Document]) -> dict[Identity, str]:
        """Read the entries of a batch."""
        rows = {table: JsonRows(self._tables[table]) for table in {document.table for document in batch}}
        names = [self._name(document) for document in batch]
        with self._errors():
            client: Any = self._connected()
            if self.address.is_cluster:
                with client.pipeline(transaction=False) as pipeline:
                    for name in names:
                        pipeline.get(name)
                    bodies = pipeline.execute()
            else:
                bodies = client.mget(names) if names else []
        wrong: dict[Identity, str] = {}
        for document, body in zip(batch, bodies, strict=True):
            known = None if document.row is None else rows[document.table].text(document.row).encode()
            if body != known:
                wrong[document.identity] = "extra" if known is None else "missing" if body is None else "changed"
        return wrong

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return a page by the marks with `set`; all entries of a cache, because their age is not known."""
        with self._errors():
            if self._mode == "delete":
                return self._cached(table, shards, after, limit)
            return self._marked(table, shards, start_seq, started_at, after, limit)

    def listed(self, table: str, shards: Shards) -> Iterator[Sequence[Place]]:
        """Scan the names of all entries, because other programs set no marks.

        Without a prefix, each entry of the database may be one of the table: then only those with marks are listed.
        """
        with self._errors():
            if self._template.beginning(table):
                names: Iterator[Place] = self._scanned(table, shards)
                while page := list(islice(names, _PART)):
                    yield page
                return
            after = None
            while marked := self._marked(table, shards, *NEWEST, after, _PART):
                yield marked
                after = marked[-1][1]

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # Writing a part.

    def _send(self, part: Sequence[tuple[Document, bytes]], mark: Mark) -> None:
        if not part:
            return
        put = [(document, body) for document, body in part if body]
        gone = [document for document, body in part if not body]
        documents = self._puts(put) + self._deletes(gone)
        listed, unlisted = self._lists([document for document, _ in put], gone, mark)
        with self._errors():
            if self.address.is_cluster:
                for commands in (listed, documents, unlisted):
                    self._execute(commands)
            else:
                self._execute([*listed, *documents, *unlisted])

    def _execute(self, commands: Sequence[Command]) -> None:
        if not commands:
            return
        with self._connected().pipeline(transaction=not self.address.is_cluster) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            pipeline.execute()

    def _puts(self, put: Sequence[tuple[Document, bytes]]) -> list[Command]:
        if self._ttl:
            return [("SET", self._name(document), body, "EX", self._ttl) for document, body in put]
        if self.address.is_cluster or not put:
            return [("SET", self._name(document), body) for document, body in put]
        return [("MSET", *(word for document, body in put for word in (self._name(document), body)))]

    def _deletes(self, gone: Sequence[Document]) -> list[Command]:
        if self.address.is_cluster or not gone:
            return [("DEL", self._name(document)) for document in gone]
        return [("DEL", *(self._name(document) for document in gone))]

    def _lists(
        self, put: Sequence[Document], gone: Sequence[Document], mark: Mark
    ) -> tuple[list[Command], list[Command]]:
        """Return the commands that list and mark documents, and those that remove deleted ones from the list."""
        listed: list[Command] = []
        unlisted: list[Command] = []
        if self._mode == "delete":
            return listed, unlisted
        text = f"{mark.seq} {mark.at.timestamp():.6f}"
        for table in sorted({document.table for document in (*put, *gone)}):
            index, marks = _own_keys(table)
            kept = [_member(document.shard, document.key) for document in put if document.table == table]
            removed = [_member(document.shard, document.key) for document in gone if document.table == table]
            if kept:
                listed.append(("ZADD", index, *(word for member in kept for word in (0, member))))
                listed.append(("HSET", marks, *(word for member in kept for word in (member, text))))
            if removed:
                unlisted += [("ZREM", index, *removed), ("HDEL", marks, *removed)]
        return listed, unlisted

    def _name(self, document: Document) -> str:
        return self._template.name(document.table, document.shard, document.key)

    # Finding older documents.

    def _marked(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> list[Place]:
        """Read along the sorted set until the page is full; all shards of a key are adjacent."""
        index, marks = _own_keys(table)
        client: Any = self._connected()
        source, places = self._tables[table], list[Place]()
        edge = b"-" if after is None else b"[" + key_text(after).encode() + b"\x01"
        fixed = fixed_shard(shards, routed=source.routed and self._moves)
        while True:
            members: list[bytes] = client.zrangebylex(index, edge, b"+", start=0, num=_PART)
            if not members:
                return places
            texts: list[bytes | None] = client.hmget(marks, members)
            for member, text in zip(members, texts, strict=True):
                shard, key = _place(member, len(source.key))
                if len(places) >= limit and key != places[-1][1]:
                    return places
                seq, _, seconds = (text or b"0 0").decode().partition(" ")
                written_at = datetime.fromtimestamp(float(seconds), timezone.utc)
                is_requested = fixed is not None or shards == "all" or shard in shards
                if is_requested and is_older(int(seq), written_at, start_seq, started_at):
                    places.append((shard if fixed is None else fixed, key))
            edge = b"(" + members[-1]

    def _cached(self, table: str, shards: Shards, after: tuple[str, ...] | None, limit: int) -> list[Place]:
        """Return a page of all entries in the order of their texts."""
        shards_by_key: dict[tuple[str, ...], set[int]] = {}
        for shard, key in self._scanned(table, shards):
            if after is not None and key <= after:
                continue
            shards_by_key.setdefault(key, set()).add(shard)
            # Keep the first page only.
            if len(shards_by_key) > 4 * limit:
                shards_by_key = {key: shards_by_key[key] for key in sorted(shards_by_key)[:limit]}
        return [(shard, key) for key in sorted(shards_by_key)[:limit] for shard in sorted(shards_by_key[key])]

    def _scanned(self, table: str, shards: Shards) -> Iterator[Place]:
        """Yield the entries whose names match the template; an entry may be yielded twice."""
        source, pattern = self._tables[table], self._template.pattern(table)
        glob = re.sub(r"([*?\[\]\\])", r"\\\1", self._template.beginning(table)) + "*"
        default = 0 if shards == "all" else next(iter(shards), 0)
        client: Any = self._connected()
        for name in client.scan_iter(match=glob, count=_PART):
            fields = pattern.fullmatch(name.decode(errors="replace"))
            key = key_parts(fields["key"], len(source.key)) if fields else None
            if fields is None or key is None:
                continue
            shard = int(fields["shard"]) if "shard" in fields.groupdict() else default
            if not source.routed or shards == "all" or shard in shards:
                yield shard, key

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self.address.connect()
        return self._client

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from redis.exceptions import RedisClusterException, RedisError

        try:
            yield
        except (OSError, RedisError, RedisClusterException) as error:
            self.close()
            # Before the error of a command in a pipeline, redis-py writes the command, with the row.
            text = str(error).rpartition(" of pipeline caused error: ")[2]
            text = mask(" ".join(text.split()), self.address.password)
            raise SinkDown(
                f"the Redis server {self.address} is not usable: {text or type(error).__name__}",
                cure="check that it is running, and check its address, its certificate and the password",
            ) from None


def _own_keys(table: str) -> tuple[str, str]:
    """Return the names of the sorted set and the hash of a table."""
    return f"trueup:keys:{table}", f"trueup:marks:{table}"


def _member(shard: int, key: Sequence[str]) -> bytes:
    # PostgreSQL texts never contain NUL.
    return key_text(key).encode() + b"\x00" + str(shard).encode()


def _place(member: bytes, columns: int) -> Place:
    text, _, shard = member.rpartition(b"\x00")
    return int(shard), key_parts(text.decode(), columns) or (text.decode(),)
