"""What sinks share: the key of a document as one text, pages of whole keys, what is older, and columns that are new."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from trueup.errors import CheckFailed, ConfigError
from trueup.sinks.base import Document, Shards, SinkDown, SourceTable

Place: TypeAlias = "tuple[int, tuple[str, ...]]"


def key_text(key: Sequence[str]) -> str:
    """One column as it is; several as a JSON array of texts, as in pods."""
    return key[0] if len(key) == 1 else json.dumps(list(key), ensure_ascii=False, separators=(",", ":"))


def key_parts(text: str, columns: int) -> tuple[str, ...] | None:
    """The key that `key_text` wrote; None if it did not."""
    if columns == 1:
        return (text,)
    try:
        parts = json.loads(text)
    except ValueError:
        return None
    if not isinstance(parts, list) or len(parts) != columns or not all(isinstance(each, str) for each in parts):
        return None
    return tuple(parts)


class Template:
    """How a document is called where it has one name: `{table}`, `{shard}` and `{key}`, which must be in it."""

    def __init__(self, text: str) -> None:
        fields = re.findall(r"\{(\w*)\}", text)
        plain = re.sub(r"\{\w*\}", "", text)
        twice = len(set(fields)) < len(fields)
        if "key" not in fields or twice or set(fields) - {"table", "shard", "key"} or set("{}") & set(plain):
            raise ConfigError(
                f"'{text}' cannot name documents", cure="put {key} in it once; {table} and {shard} may be there too"
            )
        self.text = text

    def check(self, tables: Sequence[SourceTable], *, moves: bool) -> None:
        """Refuse a template that would give two documents one name."""
        reasons = []
        if len(tables) > 1 and "{table}" not in self.text:
            reasons.append(f"the tube has several tables, and the names of documents ({self.text}) have no {{table}}")
        if moves and "{shard}" not in self.text:
            reasons += [
                f"rows of {each.table} may move from shard to shard, and the names ({self.text}) have no {{shard}}"
                for each in tables
                if each.routed
            ]
        if reasons:
            raise CheckFailed(reasons, cure="{table}:{shard}:{key}; moves=no if the shard of a row never changes")

    def name(self, table: str, shard: int, key: Sequence[str]) -> str:
        """The name of a document."""
        return self.text.format(table=table, shard=shard, key=key_text(key))

    def pattern(self, table: str) -> re.Pattern[str]:
        """What names of a table's documents look like."""
        parts = {"{table}": re.escape(table), "{shard}": r"(?P<shard>-?\d+)", "{key}": r"(?P<key>.*)"}
        pieces = re.split(r"(\{\w+\})", self.text)
        return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces), re.DOTALL)

    def beginning(self, table: str) -> str:
        """How they begin."""
        return self.text.replace("{table}", table).partition("{")[0]


def is_older(seq: int, at: datetime, start_seq: int, started_at: datetime) -> bool:
    """Whether a document with this mark is older than a backfill. By the time too: numbers start over in a new tube."""
    return seq < start_seq or at < started_at


def fixed_shard(shards: Shards, *, routed: bool) -> int | None:
    """The shard of all documents of a table that has one. It may have had another before, so theirs do not count."""
    return None if routed or shards == "all" else next(iter(shards), 0)


def check_known(source: SourceTable, documents: Sequence[Document]) -> None:
    """A column that the source has got since would be lost without a word. The rows of a batch are alike."""
    row = next((each.row for each in documents if each.row is not None), {})
    new = sorted(set(row) - {name for name, _ in source.columns})
    if new:
        raise SinkDown(
            f"{source.table} has a new column {new[0]}",
            cure="start the job again, which adds it to the target, and run a backfill",
        )
