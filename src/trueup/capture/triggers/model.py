"""What is known of tubes, attached tables, pods, backfills, and what waits: frozen dataclasses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Attached:
    """A table that is attached to a tube; pods name it by `source`."""

    source: int
    table: str
    # Of shard and routing, one is set.
    shard: int | None
    routing: str | None
    predicate: str | None
    capture: str
    # The columns of the key. One column of integers is in `Pod.ids`, everything else in `Pod.keys`.
    key: tuple[str, ...]
    attached_at: datetime
    # Why writes may go unseen now; None if all is well.
    problem: str | None


@dataclass(frozen=True)
class TubeInfo:
    """One tube: its partitions, its predicate, and the tables attached to it."""

    tube: str
    partitions: int
    predicate: str | None
    pod_size: int
    tables: tuple[Attached, ...] = ()


@dataclass(frozen=True)
class Pod:
    """One batch of touched keys of one table and shard, or a control pod with a payload."""

    seq: int
    shard: int
    source: int
    op: str
    ids: tuple[int, ...]
    # The text of the column; of a key of several columns, a JSON array of texts.
    keys: tuple[str, ...] | None
    payload: dict[str, Any] | None
    at: datetime

    @property
    def is_control(self) -> bool:
        """Whether it carries a message instead of keys."""
        return self.payload is not None


# Where `list` is something else.
Pods: TypeAlias = "list[Pod]"


@dataclass(frozen=True)
class Stats:
    """What waits in one partition of a tube. Ages are seconds; None where nothing waits."""

    tube: str
    partition: int
    live_pods: int
    live_keys: int
    backfill_pods: int
    backfill_keys: int
    control_pods: int
    # Control pods that say that a trigger met an error, also those that a worker has told and deleted.
    troubles: int
    shards: int
    oldest_live_s: float | None
    oldest_backfill_s: float | None
    # Of the whole tube.
    bytes: int
    # Keys that could not be delivered, and how many of them nobody tries any more.
    dead_letters: int = 0
    parked: int = 0
    # Who works on it ("PID on HOST"), when it was last heard of, how fast it is, what it has done, what it waits for.
    worker: str | None = None
    worker_seen_s: float | None = None
    keys_per_second: float = 0.0
    keys_done: int = 0
    waiting: str | None = None


@dataclass(frozen=True)
class Backfill:
    """The last backfill of a table and shard (None: all shards), finished or not."""

    tube: str
    source: int
    table: str
    shard: int | None
    start_seq: int
    order_col: str
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    keys: int
    pods: int
    # Rows of the table as the planner knows them, and keys of backfills that wait in the tube for this table.
    rows: int = 0
    waiting_keys: int = 0


def as_json(value: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values, times in ISO form."""
    return {name: _plain(each) for name, each in asdict(value).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
