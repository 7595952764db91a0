"""The sink of a Redis server: `mode=delete` takes the entries of touched rows out of a cache, `mode=set` keeps them as
JSON.

With `set`, two keys of our own tell which documents there are and which pod wrote them: a sorted set whose members are
in the order of their bytes, for pages, and a hash of marks. One transaction of Redis writes all of a batch's part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, ClassVar

from trueup.sinks.base import Document, Mark, Shards, SinkDown, SinkRejected, SourceTable
from trueup.sinks.documents import JsonRows
from trueup.sinks.keys import Place, Template, fixed_shard, is_older, key_parts, key_text
from trueup.sinks.options import Options
from trueup.sinks.resp import Command, Redis, RedisAddress, Refused

_PART = 2_000
_PART_BYTES = 16 << 20
_LARGEST = 512 << 20


class RedisSink:
    """Entries of a Redis server, named by a template."""

    driver_only: ClassVar[bool] = False

    def __init__(self, address: RedisAddress, options: Options) -> None:
        self.address = address
        self._mode = options.choice("mode", "delete", "set")
        self._template = Template(options.text("key", "{table}:{key}"))
        self._ttl = options.number("ttl", 0)
        self._moves = options.yes_no("moves", True)
        self._largest = options.number("largest", _LARGEST, least=1)
        options.end()
        self._tables: dict[str, SourceTable] = {}
        self._redis: Redis | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_redis": None}

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Nothing is made; a template that would give two documents one name is refused."""
        self._template.check(tables, moves=self._mode == "set" and self._moves)
        self._tables = {each.table: each for each in tables}
        with self._errors():
            self._connected().ask(["PING"])
        self.close()

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Parts of bounded size, each at once or not at all; a repeated one changes nothing."""
        rows = {table: JsonRows(self._tables[table]) for table in {each.table for each in batch}}
        part: list[tuple[Document, bytes]] = []
        size = 0
        too_large = {}
        for document in batch:
            keep = self._mode == "set" and document.row is not None
            body = rows[document.table].text(document.row or {}).encode() if keep else b""
            if len(body) > self._largest:
                too_large[document.identity] = f"{len(body):,} bytes, and Redis takes {self._largest:,} at most"
                continue
            part.append((document, body))
            size += len(body)
            if len(part) >= _PART or size >= _PART_BYTES:
                self._send(part, mark)
                part, size = [], 0
        self._send(part, mark)
        if too_large:
            raise SinkRejected("documents are too large for Redis", reasons=too_large)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        most: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """With `set` by the marks; of a cache nobody knows when an entry came, so all entries are older."""
        with self._errors():
            if self._mode == "delete":
                return self._cached(table, shards, after, most)
            return self._marked(table, shards, start_seq, started_at, after, most)

    def close(self) -> None:
        """Hang up."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    # --- what a batch does

    def _send(self, part: Sequence[tuple[Document, bytes]], mark: Mark) -> None:
        if not part:
            return
        put = [(each, body) for each, body in part if body]
        gone = [each for each, body in part if not body]
        commands: list[Command] = [["MULTI"]]
        if gone:
            commands.append(["DEL", *(self._name(each) for each in gone)])
        if self._ttl:
            commands += [["SET", self._name(each), body, "EX", str(self._ttl)] for each, body in put]
        elif put:
            commands.append(["MSET", *(word for each, body in put for word in (self._name(each), body))])
        if self._mode == "set":
            commands += self._noted([each for each, _ in put], gone, mark)
        with self._errors():
            self._connected().ask(*commands, ["EXEC"])

    def _noted(self, put: Sequence[Document], gone: Sequence[Document], mark: Mark) -> list[Command]:
        """The marks of what is there, and none of what is gone."""
        commands: list[Command] = []
        text = f"{mark.seq} {mark.at.timestamp():.6f}"
        for table in sorted({each.table for each in (*put, *gone)}):
            index, marks = _own(table)
            there = [_member(each.shard, each.key) for each in put if each.table == table]
            away = [_member(each.shard, each.key) for each in gone if each.table == table]
            if there:
                commands.append(["ZADD", index, *(word for each in there for word in ("0", each))])
                commands.append(["HSET", marks, *(word for each in there for word in (each, text))])
            if away:
                commands += [["ZREM", index, *away], ["HDEL", marks, *away]]
        return commands

    def _name(self, document: Document) -> str:
        return self._template.name(document.table, document.shard, document.key)

    # --- what is old

    def _marked(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        most: int,
    ) -> list[Place]:
        """Along the sorted set, until the page is full; all shards of a key lie side by side."""
        index, marks = _own(table)
        redis, source, found = self._connected(), self._tables[table], list[Place]()
        edge = b"-" if after is None else b"[" + key_text(after).encode() + b"\x01"
        fixed = fixed_shard(shards, routed=source.routed and self._moves)
        while True:
            members = redis.ask(["ZRANGEBYLEX", index, edge, "+", "LIMIT", "0", str(_PART)])[0]
            if not members:
                return found
            texts = redis.ask(["HMGET", marks, *members])[0]
            for member, text in zip(members, texts, strict=True):
                shard, key = _place(member, len(source.key))
                if len(found) >= most and key != found[-1][1]:
                    return found
                seq, _, at = (text or b"0 0").decode().partition(" ")
                written = datetime.fromtimestamp(float(at), timezone.utc)
                asked = fixed is not None or shards == "all" or shard in shards
                if asked and is_older(int(seq), written, start_seq, started_at):
                    found.append((shard if fixed is None else fixed, key))
            edge = b"(" + members[-1]

    def _cached(self, table: str, shards: Shards, after: tuple[str, ...] | None, most: int) -> list[Place]:
        """Entries that the template could have named, found by a scan of all keys; in the order of their texts."""
        source, pattern = self._tables[table], self._template.pattern(table)
        glob = re.sub(r"([*?\[\]\\])", r"\\\1", self._template.beginning(table)) + "*"
        default = 0 if shards == "all" else next(iter(shards), 0)
        found: dict[tuple[str, ...], set[int]] = {}
        cursor = b"0"
        while True:
            cursor, names = self._connected().ask(["SCAN", cursor, "MATCH", glob, "COUNT", str(_PART)])[0]
            for name in names:
                fields = pattern.fullmatch(name.decode(errors="replace"))
                key = key_parts(fields["key"], len(source.key)) if fields else None
                if fields is None or key is None or (after is not None and key <= after):
                    continue
                shard = int(fields["shard"]) if "shard" in fields.groupdict() else default
                if not source.routed or shards == "all" or shard in shards:
                    found.setdefault(key, set()).add(shard)
            # Only the first page is wanted: what is behind it need not be kept.
            if len(found) > 4 * most:
                found = {key: found[key] for key in sorted(found)[:most]}
            if cursor == b"0":
                return [(shard, key) for key in sorted(found)[:most] for shard in sorted(found[key])]

    def _connected(self) -> Redis:
        if self._redis is None:
            self._redis = Redis(self.address)
        return self._redis

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, Refused) as error:
            self.close()
            raise SinkDown(
                f"the Redis server {self.address}: {error}",
                cure="check that it runs, and its address and password; it is tried again",
            ) from None


def _own(table: str) -> tuple[str, str]:
    """The sorted set and the hash of a table."""
    return f"trueup:keys:{table}", f"trueup:marks:{table}"


def _member(shard: int, key: Sequence[str]) -> bytes:
    # No text of PostgreSQL holds a NUL.
    return key_text(key).encode() + b"\x00" + str(shard).encode()


def _place(member: bytes, columns: int) -> Place:
    text, _, shard = member.rpartition(b"\x00")
    return int(shard), key_parts(text.decode(), columns) or (text.decode(),)
