"""The data that enrichment hands to a sink: documents, the mark of their batch, and the tables they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

# Identifies a document: table, shard, and the text of each key column.
Identity: TypeAlias = "tuple[str, int, tuple[str, ...]]"


@dataclass(frozen=True)
class SourceTable:
    """A table attached to the tube: its columns with their PostgreSQL types, in order, and its key columns."""

    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    # Whether a routing expression may move a row to another shard. A key can then exist in two shards at the same
    # time, so a document is identified by shard and key.
    routed: bool = True


@dataclass(frozen=True)
class Document:
    """One key of a batch with the current row.

    Values are int, float, bool, str or None. A value without an exact JSON form (numeric, date and time, bytea, array,
    json, NaN and infinity) is the text that PostgreSQL writes: see the table in docs/sinks.md.
    """

    table: str
    shard: int
    key: tuple[str, ...]
    # Operation of the newest pod with this key: I, U, D from triggers, T from a manual touch, B from a backfill.
    # Whether to write or delete depends on `row` only.
    op: str
    # None: the row does not exist (any more), so the document must be deleted.
    row: Mapping[str, Any] | None

    @property
    def identity(self) -> Identity:
        """Return the identity of the document in a sink."""
        return self.table, self.shard, self.key


@dataclass(frozen=True)
class Mark:
    """Number and time of the oldest pod of a batch. A sink stores it with each document, for `older`."""

    seq: int
    at: datetime
