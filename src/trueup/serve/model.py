"""What the collector has seen: one part per source, each with the time of the last success and the last error."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from trueup.capture.triggers.model import Stats, TubeInfo
from trueup.config.wording import counted
from trueup.store.browse import Summary
from trueup.store.history import ACCEPTED, MATCH, TableState, with_contradictions
from trueup.verbs.doctor.model import Finding
from trueup.verbs.schedule.listing import Due
from trueup.verbs.switchover.status import SwitchStatus
from trueup.verbs.sync.status import SyncStatus
from trueup.verbs.tube.letters import Letter
from trueup.verbs.validate.row_errors import ErrorRow
from trueup.verbs.validate.status import Status

T = TypeVar("T")
# The schema of tubes unless another one is chosen.
TUBES = "tube"


@dataclass(frozen=True)
class Part(Generic[T]):
    """What one source returned last. `error` is why the last attempt failed; the value is then older than that."""

    name: str
    value: T | None = None
    # Seconds since the epoch: of the last success, and of the last attempt.
    seen_at: float = 0.0
    tried_at: float = 0.0
    error: str = ""
    cure: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the source was read, the last time completely."""
        return bool(self.seen_at) and not self.error and not getattr(self.value, "problems", ())


@dataclass(frozen=True)
class ValidationSeen:
    """A validation, its newest open errors, and the node of its meta database."""

    meta: str
    status: Status
    errors: tuple[ErrorRow, ...] = ()


@dataclass(frozen=True)
class TubeSeen:
    """A tube of a node with the statistics of its partitions."""

    node: str
    info: TubeInfo
    stats: tuple[Stats, ...]
    schema: str = TUBES
    # The newest keys that could not be delivered.
    letters: tuple[Letter, ...] = ()

    def total(self, *names: str) -> float:
        """Return the sum of attributes of `Stats` over all partitions."""
        return sum(getattr(row, name) or 0 for row in self.stats for name in names)

    @property
    def name(self) -> str:
        """The name of the tube; with its schema, if that is not the usual one."""
        return self.info.tube if self.schema == TUBES else f"{self.schema}.{self.info.tube}"

    @property
    def backlog(self) -> int:
        """The number of waiting keys."""
        return int(self.total("live_keys", "backfill_keys"))


@dataclass(frozen=True)
class SlotSeen:
    """A logical replication slot that trueup made."""

    node: str
    slot: str
    is_active: bool
    # None: the server does not reserve any log for it any more.
    retained_bytes: int | None


@dataclass(frozen=True)
class NodeSeen:
    """What one node has: validations in its meta database, tubes, slots, and what could not be read."""

    node: str
    identity: str = ""
    validations: tuple[ValidationSeen, ...] = ()
    tubes: tuple[TubeSeen, ...] = ()
    slots: tuple[SlotSeen, ...] = ()
    # Syncs into this database: their name, and the identity of the source.
    syncs: tuple[tuple[str, str], ...] = ()
    # Why something of it is as it was before, although the node answers.
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncSeen:
    """A sync between two nodes, and its switchover if one is prepared."""

    name: str
    source: str
    target: str
    status: SyncStatus | None = None
    switchover: SwitchStatus | None = None
    problem: str = ""


@dataclass(frozen=True)
class Seen:
    """Everything, at one moment. `version` grows with every change."""

    version: int = 0
    stores: Mapping[Path, Part[Summary]] = field(default_factory=dict)
    nodes: Mapping[str, Part[NodeSeen]] = field(default_factory=dict)
    # Without a name: not read, because the configuration has none.
    syncs: Part[tuple[SyncSeen, ...]] = field(default_factory=lambda: Part(""))
    schedule: Part[tuple[Due, ...]] = field(default_factory=lambda: Part(""))
    doctor: Part[tuple[Finding, ...]] = field(default_factory=lambda: Part(""))

    @property
    def parts(self) -> list[Part[Any]]:
        """All parts, the stores first."""
        return [part for _, part in self.parts_by_kind]

    @property
    def parts_by_kind(self) -> list[tuple[str, Part[Any]]]:
        """All parts, each with its kind: a node may have the name of another part."""
        others = (self.syncs, self.schedule, self.doctor)
        return [
            *(("store", part) for part in self.stores.values()),
            *(("node", part) for part in self.nodes.values()),
            *(("command", part) for part in others if part.name),
        ]

    def summaries(self) -> list[Summary]:
        """Return the summaries of the stores that were read."""
        return [part.value for part in self.stores.values() if part.value is not None]

    @cached_property
    def states(self) -> tuple[TableState, ...]:
        """The tables of all stores; if several stores have a table, the newest of their verdicts counts."""
        found: dict[tuple[str, str, str], TableState] = {}
        for state in (state for summary in self.summaries() for state in summary.states):
            key = state.run.table_name, state.run.cluster_name, state.run.nodes
            found[key] = _merged(found[key], state) if key in found else state
        return tuple(with_contradictions(self._with_errors(state) for state in found.values()))

    def _with_errors(self, state: TableState) -> TableState:
        """Return a table with the open errors that a validation of the same nodes has for it now."""
        run = state.run
        for status in (seen.status for seen in self.validations()):
            if {status.source, status.target} == set(run.nodes.split(",")) and run.verdict in (MATCH, ACCEPTED):
                for table in status.tables:
                    errors = table.errors.get("new", 0)
                    if errors and run.table_name in (table.source, table.target):
                        return replace(state, against=f"{counted(errors, 'error')} of the validation {status.name}")
        return state

    def validations(self) -> list[ValidationSeen]:
        """Return the validations of all nodes; names of nodes may stand for the same database."""
        found: dict[tuple[str, str], ValidationSeen] = {}
        for part in self.nodes.values():
            if part.value is not None:
                for validation in part.value.validations:
                    found.setdefault((part.value.identity, validation.status.name), validation)
        return list(found.values())

    def tubes(self) -> list[TubeSeen]:
        """Return the tubes of all nodes."""
        found: dict[tuple[str, str], TubeSeen] = {}
        for part in self.nodes.values():
            if part.value is not None:
                for tube in part.value.tubes:
                    found.setdefault((part.value.identity, tube.name), tube)
        return list(found.values())

    def slots(self) -> list[SlotSeen]:
        """Return the slots of all nodes; a slot belongs to a database, so two names of one node list it twice."""
        found: dict[tuple[str, str], SlotSeen] = {}
        for part in self.nodes.values():
            if part.value is not None:
                for slot in part.value.slots:
                    found.setdefault((part.value.identity, slot.slot), slot)
        return list(found.values())


def _merged(one: TableState, other: TableState) -> TableState:
    newest = max(one.run, other.run, key=lambda run: run.finished_at)
    matched = max(filter(None, (one.matched_at, other.matched_at)), default=None)
    return TableState(newest, matched, one.runs + other.runs, one.rows_total + other.rows_total)


class Trend:
    """The last values of one number, for a chart: bounded, the oldest are dropped."""

    MOST = 720

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=self.MOST)

    def add(self, at: float, value: float | None) -> None:
        """Add a value; None is not known, and leaves a gap."""
        if value is not None:
            self._values.append((at, float(value)))

    def values(self) -> Sequence[tuple[float, float]]:
        """Return times and values, the oldest first."""
        return tuple(self._values)
