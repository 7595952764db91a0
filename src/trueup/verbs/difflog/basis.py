"""The basis of a log: the settings that its rows and its state rest on, and what a change of them means.

The rows of the log are cancelled by rows that a later run computes again from the state. A setting that changes what is
computed must therefore be the same in every run, or the log must be migrated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SINCE, SLOW, DiffLogConfig, Rule

_NEW_LOG = "Write the old value, or start a new log: another work folder, state and table."
# The role of a column that is not part of the state: it only identifies or orders the rows of a side log.
_ASIDE = "only in the rows of a side log"


@dataclass(frozen=True)
class LogColumns:
    """The columns of a side log that are not part of the state, unless they have a rule."""

    id: tuple[str, ...] = ()
    order_by: str = ""


@dataclass(frozen=True)
class Basis:
    """The settings that a log rests on. The types of the key are those of the state table."""

    multiplier: int
    buckets: int
    entity: str
    key: tuple[str, ...]
    fast_version: str
    deleted: str = ""
    dropped: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    logs: Mapping[str, LogColumns] = field(default_factory=dict)
    ttl_days: int = 0
    ttl_column: str = ""
    # Whether states may have expired: then rows without a state are expected in the log.
    has_expired: bool = False
    # The multipliers before migrations: cancelled rows with their versions may still be in the log.
    multipliers: tuple[int, ...] = ()

    @classmethod
    def of(cls, difflog: DiffLogConfig, before: Basis | None = None) -> Basis:
        """Return the basis of a configuration, after the basis `before`."""
        entity, state = difflog.entity, difflog.state
        earlier = (*before.multipliers, before.multiplier) if before else ()
        return cls(
            multiplier=difflog.multiplier,
            buckets=state.buckets,
            entity=entity.name,
            key=entity.key,
            fast_version=entity.fast_version,
            deleted=entity.deleted,
            dropped=entity.dropped,
            rules=difflog.rules,
            logs={log.name: LogColumns(log.id, log.order_by) for log in difflog.logs},
            ttl_days=state.ttl_days,
            ttl_column=state.ttl_column if state.ttl_days else "",
            has_expired=bool(state.ttl_days or (before and before.has_expired)),
            multipliers=tuple(number for number in dict.fromkeys(earlier) if number != difflog.multiplier),
        )

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Basis:
        """Return the basis that `as_json` has written."""
        lists = {name: tuple(facts[name]) for name in ("key", "dropped", "multipliers")}
        rules = {name: Rule(**rule) for name, rule in facts["rules"].items()}
        logs = {name: LogColumns(tuple(log["id"]), log["order_by"]) for name, log in facts["logs"].items()}
        return cls(**{**facts, **lists, "rules": rules, "logs": logs})

    def as_json(self) -> dict[str, Any]:
        """Return the basis as a JSON object."""
        return asdict(self)

    def role(self, column: str) -> str:
        """Return how a column is used: dropped, aside, or part of the state with a rule."""
        if column in self.dropped:
            return "dropped"
        if column == self.deleted:
            return "the marker of deletions"
        if column in self.rules:
            return _text(self.rules[column])
        if column in [rule.by for rule in self.rules.values()]:
            return "max"
        if any(column in (*log.id, log.order_by) for log in self.logs.values()):
            return _ASIDE
        return "replace"

    def is_state(self, column: str) -> bool:
        """Return whether a column is part of the state."""
        return self.role(column) not in ("dropped", "the marker of deletions", _ASIDE)


@dataclass(frozen=True)
class Change:
    """A setting that differs from the basis of the log; with a cure if a migration cannot change it."""

    setting: str
    old: object
    new: object
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.setting} is {_shown(self.new)}, but the log was written with {_shown(self.old)}"


def changes(old: Basis, new: Basis, columns: Collection[str]) -> list[Change]:
    """Return the changes that concern what is written already; `columns` are those of the state and of its `Fast`."""
    return [*_fixed(old, new), *_settings(old, new), *_logs(old, new), *_roles(old, new, columns)]


def check_unchanged(old: Basis, new: Basis, columns: Collection[str]) -> None:
    """Raise CheckFailed that names every changed setting."""
    found = changes(old, new, columns)
    if not found:
        return
    lasting = [change for change in found if change.cure]
    if lasting:
        raise CheckFailed([str(change) for change in found], cure=lasting[0].cure)
    raise CheckFailed(
        [str(change) for change in found],
        cure="nothing was written; write the old values into difflog.toml, or change the log: trueup difflog migrate",
    )


def check_same(begun: Basis, now: Basis, run: int) -> None:
    """Raise CheckFailed if an unfinished run was started with other settings: its outputs would not fit together."""
    if begun == now:
        return
    columns = dict.fromkeys([*begun.rules, *begun.dropped, *now.rules, *now.dropped])
    found = [str(change) for change in changes(begun, now, columns)] or ["side logs or columns were added"]
    raise CheckFailed(
        [f"run {run} is unfinished, and was started with other settings: {reason}" for reason in found],
        cure="write the old values into difflog.toml and finish the run with `trueup difflog run`; then change them",
    )


def _fixed(old: Basis, new: Basis) -> Iterator[Change]:
    """Yield changes that make another log: a row would have another identity."""
    for setting, name in (("entity.name", "entity"), ("entity.key", "key"), ("entity.fast_version", "fast_version")):
        if getattr(old, name) != getattr(new, name):
            yield Change(setting, getattr(old, name), getattr(new, name), _NEW_LOG)


def _settings(old: Basis, new: Basis) -> Iterator[Change]:
    for setting, name in (
        ("multiplier", "multiplier"),
        ("state.buckets", "buckets"),
        ("entity.deleted", "deleted"),
        ("state.ttl_days", "ttl_days"),
        ("state.ttl_column", "ttl_column"),
    ):
        if getattr(old, name) != getattr(new, name):
            yield Change(setting, getattr(old, name), getattr(new, name))


def _logs(old: Basis, new: Basis) -> Iterator[Change]:
    """Yield side logs that are missing: their late rows would be forgotten. A new log is no change."""
    missing = [name for name in old.logs if name not in new.logs]
    if missing:
        yield Change("the list of side logs", tuple(old.logs), tuple(new.logs))


def _roles(old: Basis, new: Basis, columns: Collection[str]) -> Iterator[Change]:
    reserved = {*old.key, old.fast_version, SLOW, DELETED, EXPIRES, FAST, SINCE}
    for column in (name for name in columns if name not in reserved):
        before, after = old.role(column), new.role(column)
        if before != after:
            yield Change(f"the rule of column {column}", before, after)


def _text(rule: Rule) -> str:
    return " ".join(part for part in (rule.name, f"by {rule.by}" if rule.by else "", rule.sql) if part)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    return "empty" if value == "" else str(value)
