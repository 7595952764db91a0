"""Dataclasses of tubes, attached tables, pods, statistics and backfills."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Attached:
    """A table attached to a tube; pods refer to it by `source`."""

    source: int
    table: str
    # Either the shard or the routing expression is set.
    shard: int | None
    routing: str | None
    predicate: str | None
    capture: str
    # Key columns. Keys of one integer column are in `Pod.ids`, all others in `Pod.keys`.
    key: tuple[str, ...]
    attached_at: datetime
    # Why writes may not be captured, or rows cannot be delivered, at present; None if there is no problem.
    problem: str | None
    # Columns that were added with a default, renamed or changed since the last backfill, with the reason: documents of
    # rows that were not touched since lack their values.
    stale_columns: tuple[str, ...] = ()
    # Whether a job of the tube will run a backfill: a table that gets another key needs one.
    backfill_is_scheduled: bool = False

    @property
    def capture_problem(self) -> str:
        """Return the problem if it concerns later changes, not only what a copy has of earlier ones."""
        return "" if self.problem is None or self.problem.startswith("the copy may be incomplete") else self.problem


@dataclass(frozen=True)
class TubeInfo:
    """A tube: its settings and the tables attached to it."""

    tube: str
    partitions: int
    predicate: str | None
    pod_size: int
    tables: tuple[Attached, ...] = ()


@dataclass(frozen=True)
class Ensured:
    """A tube that exists now: its settings, and what of them was changed, as `name: before -> after`."""

    tube: str
    is_new: bool
    partitions: int
    predicate: str | None
    pod_size: int
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pod:
    """Touched keys of one table and shard, or a control pod with a payload."""

    seq: int
    shard: int
    source: int
    op: str
    ids: tuple[int, ...]
    # The text of the key column; for several columns, a JSON array of texts.
    keys: tuple[str, ...] | None
    payload: dict[str, Any] | None
    at: datetime
    # Keys that are not UTF-8, with escapes: in databases with the encoding SQL_ASCII.
    undecodable: tuple[str, ...] = ()

    @property
    def is_control(self) -> bool:
        """Whether the pod has a payload instead of keys."""
        return self.payload is not None

    @property
    def message(self) -> dict[str, Any]:
        """Return the payload of a control pod; empty for other pods."""
        return self.payload or {}

    @property
    def size(self) -> int:
        """Return the number of keys."""
        return len(self.ids) + len(self.keys or ()) + len(self.undecodable)


@dataclass(frozen=True)
class Stats:
    """Statistics of one partition of a tube. Ages are in seconds; None if nothing is waiting."""

    tube: str
    partition: int
    live_pods: int
    live_keys: int
    backfill_pods: int
    backfill_keys: int
    control_pods: int
    # Capture problems reported by control pods, including those that a worker has already processed.
    troubles: int
    shards: int
    # Of live touches alone, and of backfills and garbage collection with their control pods.
    oldest_live_s: float | None
    oldest_backfill_s: float | None
    # Size of the tube, all partitions together.
    bytes: int
    # Keys that could not be delivered, and how many of them are not retried any more.
    dead_letters: int = 0
    parked: int = 0
    # The worker ("PID on HOST"), seconds since its last heartbeat, its rate, its total, and what it is waiting for.
    worker: str | None = None
    worker_seen_s: float | None = None
    keys_per_second: float = 0.0
    keys_done: int = 0
    waiting: str | None = None
    # What the worker runs on: its name (local, spark), and with Spark its jobs, batches and rates.
    engine: dict[str, Any] = field(default_factory=dict)


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
    # Rows of the table as estimated by the planner, and backfill keys of this table that wait in the tube.
    rows: int = 0
    waiting_keys: int = 0


def as_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON values, with times in ISO format."""
    return {name: _plain(item) for name, item in asdict(value).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
