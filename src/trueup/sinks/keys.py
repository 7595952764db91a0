"""Shared by sinks: keys as text, templates for names of documents, the check for older documents and new columns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TypeAlias

from trueup.errors import CheckFailed, ConfigError
from trueup.sinks.base import Document, Shards, SinkDown, SourceTable

Place: TypeAlias = "tuple[int, tuple[str, ...]]"
# A pod and a time that all documents are older than.
NEWEST = 2**63 - 1, datetime(9999, 1, 1, tzinfo=timezone.utc)


def key_text(key: Sequence[str]) -> str:
    """Return a key as one text: the column itself, or a JSON array of several columns, as in pods."""
    return key[0] if len(key) == 1 else json.dumps(list(key), ensure_ascii=False, separators=(",", ":"))


def key_parts(text: str, columns: int) -> tuple[str, ...] | None:
    """Parse a key written by `key_text`; None if the text is not such a key."""
    if columns == 1:
        return (text,)
    try:
        parts = json.loads(text)
    except ValueError:
        return None
    if not isinstance(parts, list) or len(parts) != columns or not all(isinstance(part, str) for part in parts):
        return None
    return tuple(parts)


class Template:
    """The name of a document, from `{table}`, `{shard}` and `{key}`; `{key}` is required."""

    def __init__(self, text: str) -> None:
        fields = re.findall(r"\{(\w*)\}", text)
        plain = re.sub(r"\{\w*\}", "", text)
        twice = len(set(fields)) < len(fields)
        if "key" not in fields or twice or set(fields) - {"table", "shard", "key"} or set("{}") & set(plain):
            raise ConfigError(
                f"'{text}' is not a valid template for names",
                cure="use {key} once, and optionally {table} and {shard} once",
            )
        self.text = text

    def check(self, tables: Sequence[SourceTable], *, moves: bool) -> None:
        """Raise CheckFailed if two documents could have the same name."""
        reasons = []
        if len(tables) > 1 and "{table}" not in self.text:
            reasons.append(f"the tube has several tables, but the name of documents ({self.text}) has no {{table}}")
        if moves and "{shard}" not in self.text:
            reasons += [
                f"rows of {source.table} may change their shard,"
                f" but the name of documents ({self.text}) has no {{shard}}"
                for source in tables
                if source.routed
            ]
        if reasons:
            raise CheckFailed(
                reasons, cure="use {table}:{shard}:{key}, or moves=no if the shard of a row never changes"
            )

    def name(self, table: str, shard: int, key: Sequence[str]) -> str:
        """Return the name of a document."""
        return self.text.format(table=table, shard=shard, key=key_text(key))

    def pattern(self, table: str) -> re.Pattern[str]:
        """Return the pattern of the names of the documents of a table."""
        parts = {"{table}": re.escape(table), "{shard}": r"(?P<shard>-?\d+)", "{key}": r"(?P<key>.*)"}
        pieces = re.split(r"(\{\w+\})", self.text)
        return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces), re.DOTALL)

    def beginning(self, table: str) -> str:
        """Return the common prefix of these names."""
        return self.text.replace("{table}", table).partition("{")[0]


def is_older(seq: int, written_at: datetime, start_seq: int, started_at: datetime) -> bool:
    """Whether a mark is older than a backfill. The time is compared too, as numbers restart in a new installation."""
    return seq < start_seq or written_at < started_at


def fixed_shard(shards: Shards, *, routed: bool) -> int | None:
    """Return the shard of a table with a fixed shard; stored shards are ignored, because it may have changed."""
    return None if routed or shards == "all" else next(iter(shards), 0)


def check_known(source: SourceTable, documents: Sequence[Document]) -> None:
    """Raise SinkDown for a column added since `setup`, which would be lost. All rows have the same columns."""
    row = next((document.row for document in documents if document.row is not None), {})
    new = sorted(set(row) - {name for name, _ in source.columns})
    if new:
        raise SinkDown(
            f"{source.table} has a new column {new[0]}",
            cure="restart the job, which adds it to the target, then run a backfill",
        )
