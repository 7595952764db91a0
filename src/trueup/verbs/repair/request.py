"""The options of a repair, and the mode that they select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trueup.config.model import Node
from trueup.config.settings import DiffSettings
from trueup.db.node import LOCK_TIMEOUT
from trueup.errors import ConfigError
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.task.past import Hash, Past
from trueup.verbs.repair.modes import INSERTS, UPSERTS, Bidirectional, FixNulls, Majority, Mode, SourceOfTruth

Stale = Literal["skip", "apply"]
# safe: under a replication origin, and not if a subscription would stop; accept: even then; all: without an origin.
Replicate = Literal["safe", "accept", "all"]


@dataclass(frozen=True)
class Writing:
    """How a repair or an undo writes its nodes."""

    fire_triggers: bool = False
    replicate: Replicate = "safe"
    # Seconds to wait for a lock of another session; 0: no limit.
    lock_timeout: float = LOCK_TIMEOUT

    def validated(self) -> Writing:
        """Return the options; raise ConfigError on a value that is not allowed."""
        if self.replicate not in get_args(Replicate):
            choices = ", ".join(get_args(Replicate))
            raise ConfigError(f"--replicate must be one of {choices}, not {self.replicate}", cure="give one of them")
        if not 0 <= self.lock_timeout <= _MAX_SECONDS:
            raise ConfigError(
                f"--lock-timeout must be from 0 to {_MAX_SECONDS:,} seconds, not {self.lock_timeout:g}",
                cure="give another number, or 0 for no limit",
            )
        return self


@dataclass(frozen=True)
class RepairRequest:
    """How to decide, how to write, and the path of the undo file."""

    source_of_truth: str = ""
    insert_only: bool = False
    upsert_only: bool = False
    bidirectional: bool = False
    fix_nulls: bool = False
    majority: bool = False
    plan: str = ""
    stale: Stale = "skip"
    fire_triggers: bool = False
    replicate: Replicate = "safe"
    lock_timeout: float = LOCK_TIMEOUT
    execute: bool = False
    undo: str = ""

    @property
    def writing(self) -> Writing:
        """How the nodes are written."""
        return Writing(self.fire_triggers, self.replicate, self.lock_timeout)

    def validated(self) -> RepairRequest:
        """Return the request; raise ConfigError unless it has exactly one mode and options that fit it."""
        modes = [_option(name) for name in _MODES if getattr(self, name)]
        if len(modes) != 1:
            message = f"{' and '.join(modes)} exclude each other" if modes else "no repair mode is given"
            raise ConfigError(message, cure=f"give one of {', '.join(_option(name) for name in _MODES)}")
        if (self.insert_only or self.upsert_only) and not self.source_of_truth:
            raise ConfigError(
                "--insert-only and --upsert-only need --source-of-truth", cure="name the node to take rows from"
            )
        if self.insert_only and self.upsert_only:
            raise ConfigError("--insert-only and --upsert-only exclude each other", cure="give one of them")
        if self.stale not in ("skip", "apply"):
            raise ConfigError(f"--stale must be skip or apply, not {self.stale}", cure="give one of them")
        self.writing.validated()
        return self

    @property
    def mode_name(self) -> str:
        """The mode and its value, as results show it."""
        name = next(name for name in _MODES if getattr(self, name))
        limit = " insert-only" if self.insert_only else " upsert-only" if self.upsert_only else ""
        value = getattr(self, name)
        return f"{name.replace('_', '-')}{f' {value}' if isinstance(value, str) else ''}{limit}"

    def mode(self, nodes: tuple[str, ...]) -> Mode | None:
        """Return the mode for these nodes; None if a plan decides."""
        if self.majority and len(nodes) < 3:
            raise ConfigError(
                "--majority needs at least three nodes", cure="name the correct node with --source-of-truth"
            )
        if self.source_of_truth:
            if self.source_of_truth not in nodes:
                message = f"--source-of-truth: {self.source_of_truth} is not a node of the report"
                raise ConfigError(message, cure=f"name one of {', '.join(nodes)}")
            source = nodes.index(self.source_of_truth)
            if self.insert_only:
                return SourceOfTruth(source, INSERTS, "--insert-only")
            if self.upsert_only:
                return SourceOfTruth(source, UPSERTS, "--upsert-only")
            return SourceOfTruth(source)
        if self.bidirectional:
            return Bidirectional()
        if self.fix_nulls:
            return FixNulls()
        return Majority() if self.majority else None

    def context(self) -> dict[str, Any]:
        """Return the request as the task store keeps it."""
        return {
            "way": self.mode_name,
            "stale": self.stale,
            "fire_triggers": self.fire_triggers,
            "replicate": self.replicate,
            "execute": self.execute,
        }


@dataclass(frozen=True)
class RepairKeys:
    """The keys to repair: those of a report, or a list without hashes, of which no key can be stale."""

    of: str
    keys: tuple[KeyValues, ...]
    hashes: Sequence[tuple[Hash, ...]] = ()
    past: Past | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepairTable:
    """One table to repair. `load` reads its keys, which are not kept in memory while other tables are read."""

    request: TableRequest
    load: Callable[[], RepairKeys]
    # What the report says about the table, without keys; None: there is no report.
    head: Past | None = None

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.request.table


def table_of_keys(request: TableRequest, of: str, keys: Iterable[KeyValues]) -> RepairTable:
    """Return a table to repair without a report; `of` is what the result names as the origin of the keys.

    Keys are texts, in the order of the key of the request.
    """
    unique = RepairKeys(of, tuple(dict.fromkeys(tuple(values) for values in keys)))
    return RepairTable(request, lambda: unique)


@dataclass(frozen=True)
class RepairRun:
    """All tables of a run or a validation, and those that cannot be repaired, with the reasons."""

    of: str
    nodes: tuple[Node, ...]
    tables: tuple[RepairTable, ...]
    settings: DiffSettings
    # All tables of the run, also those that are not repaired: a plan can have entries for them.
    known: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    # As in the result.
    validation: str = ""
    others: int = 0
    is_running: bool = False


# The largest lock_timeout of a server, which counts milliseconds in 31 bits.
_MAX_SECONDS = 2_147_483
_MODES = ("source_of_truth", "bidirectional", "fix_nulls", "majority", "plan")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
