"""The state of one key, computed in plain Python from all rows of the key: the rules of docs/difflog.md once more.

A proof compares it with the state table. It shares no code with the runs, which compute states in Spark SQL, so that an
error of a run is found. It runs on the executors, where trueup need not be installed: only the standard library is
imported, and the module is sent with the function.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Decimals of Spark have at most 38 digits.
_EXACT = decimal.Context(prec=80)
_DAY = 86_400_000_000
_REJOINED = ("older", "not back", "unknown")
_REPLACE, _NEWEST = ("replace", ""), ("max", "")
# What differs, if not a column: the table must have a state and has none, or must have none and has one.
NO_STATE, HAS_STATE = "no state", "has a state"


@dataclass(frozen=True)
class KeyRules:
    """What the state of a key depends on, besides its rows. Days are numbers, times are microseconds."""

    # The sources in the order of their steps; the first is the entity.
    sources: tuple[str, ...]
    # The columns of the state that a source has.
    columns: Mapping[str, tuple[str, ...]]
    # Columns that identify the rows of a log, and all its columns in the order in which duplicates are compared.
    ids: Mapping[str, tuple[str, ...]]
    all_columns: Mapping[str, tuple[str, ...]]
    # Name of the rule, and its time column.
    rules: Mapping[str, tuple[str, str]]
    # Columns with 32-bit floating point numbers.
    floats: frozenset[str]
    # The columns of the fast supplier, the column with the fast version, and the names of columns that trueup adds.
    supplied: tuple[str, ...]
    version_name: str
    deleted_name: str
    fast_name: str
    has_deletions: bool
    # Number of days and column of `ttl_days`; whether the column has times, or is a part of the key.
    ttl_days: int
    ttl_column: str
    ttl_is_time: bool
    ttl_in_key: bool
    # By number: the day of the run, whether it rejoined late rows, and the runs whose late rows it took.
    runs: Mapping[int, tuple[int, bool, tuple[int, ...]]]
    # Columns that are not compared: their rules are Spark SQL.
    skipped: frozenset[str]

    # By time column without a rule of its own: the columns that it orders, those with a `last` rule.
    followers: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        times = {by for rule, by in self.rules.values() if rule == "last" and by not in self.rules}
        followers = {time: tuple(name for name, (_, by) in self.rules.items() if by == time) for time in times}
        object.__setattr__(self, "followers", followers)

    def rule(self, name: str) -> tuple[str, str]:
        """Return the rule of a column, and its time column."""
        return self.rules.get(name) or (_NEWEST if name in self.followers else _REPLACE)


@dataclass
class _Update:
    """One row: `place` is its run, `rank` its order among the rows of a source."""

    place: int
    fast: int
    gone: bool
    rank: Any
    values: dict[str, Any]


@dataclass
class _State:
    fast: int | None = None
    slow: int | None = None
    deleted: bool = False
    # The version of the last deletion.
    cleared: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    # The fast version of each value that a newer one replaces.
    since: dict[str, int] = field(default_factory=dict)
    supplied: dict[str, Any] | None = None
    supplied_version: int | None = None


def comparison(rules: KeyRules, sources: Sequence[str]) -> Callable[..., list[str]]:
    """Return `differing_columns` as a function of the rows of a key in Spark: base, state, and rows per source."""

    def compare(base: Any, found: Any, *rows: Any) -> list[str]:
        return differing_columns(rules, base, dict(zip(sources, rows, strict=True)), found)

    return compare


def differing_columns(rules: KeyRules, base: Any, rows: Mapping[str, Sequence[Any]], found: Any) -> list[str]:
    """Return the columns in which a state differs from the one that the rows of its key imply.

    `base` is the state before the first run with a row, or None; `found` is the state in the table, or None. Both are
    rows of Spark with `run`, `fast`, `slow`, `deleted`, `since`, `values` and `supplied`.
    """
    updates = {source: [_update(row) for row in rows.get(source) or ()] for source in rules.sources}
    first = min(update.place for every in updates.values() for update in every)
    state = _from_row(rules, base) if base is not None and base["run"] == first else None
    aside: list[tuple[int, str, _Update, str]] = []
    numbers = {update.place for every in updates.values() for update in every}
    for number, (_, _, late_from) in sorted(rules.runs.items()):
        if number in numbers or (aside and late_from):
            given = {source: [one for one in every if one.place == number] for source, every in updates.items()}
            state, aside = _run(rules, number, state, given, aside)
    return _compared(rules, state, found)


def _update(row: Any) -> _Update:
    rank = (row["fast"], _order(row["position"]), row["gone"], row["tie"])
    return _Update(row["run"], row["fast"], row["gone"], rank, row["values"].asDict())


def _from_row(rules: KeyRules, row: Any) -> _State:
    since = {pair["key"]: pair["value"] for pair in row["since"] or ()}
    values = {name: value for name, value in row["values"].asDict().items() if value is not None}
    fast = row["fast"]
    supplied = row["supplied"].asDict() if row["supplied"] is not None else None
    return _State(
        fast,
        row["slow"],
        bool(row["deleted"]),
        since.get(rules.deleted_name, fast if row["deleted"] else None),
        values,
        {name: since.get(name, fast) for name in values},
        supplied,
        since.get(rules.fast_name, fast) if supplied is not None else None,
    )


def _run(
    rules: KeyRules,
    number: int,
    state: _State | None,
    given: dict[str, list[_Update]],
    aside: list[tuple[int, str, _Update, str]],
) -> tuple[_State | None, list[tuple[int, str, _Update, str]]]:
    """Return the state after a run, and the rows that were not applied: run, source, row, reason."""
    today, rejoins, late_from = rules.runs[number]
    if state is not None and _is_expired(rules, state, today):
        state = None
    again = [one for one in aside if one[0] in late_from and one[3] in _REJOINED]
    aside = [one for one in aside if not (one[0] in late_from and one[3] in _REJOINED)]
    before = state.fast if state is not None else None
    for source in rules.sources:
        rows = [*given[source], *[update for _, other, update, _ in again if other == source]]
        usable = [row for row in rows if not _is_too_old(rules, row, today)]
        usable = _once(rules, source, usable)
        if usable:
            state, late = _step(rules, source, state, before, usable, rejoins=rejoins)
            aside += [(number, source, row, reason) for row, reason in late]
    return state, aside


def _step(
    rules: KeyRules, source: str, state: _State | None, before: int | None, rows: list[_Update], *, rejoins: bool
) -> tuple[_State | None, list[tuple[_Update, str]]]:
    """Return the state after the rows of one source; `before` is the fast version before the run."""
    of_entity = source == rules.sources[0]
    old = state or _State()
    if not _may_have_state(rules, state, rows, of_entity=of_entity):
        return state, [(row, "unknown") for row in rows]
    rows = sorted(rows, key=lambda row: row.rank)
    in_time = [row for row in rows if before is None or row.fast >= before]
    earlier = -1 if old.cleared is None else old.cleared
    deletions = [row.fast for row in in_time if row.gone and row.fast > earlier] if of_entity else []
    deletion = max(deletions) if deletions and rules.has_deletions else None
    cleared = earlier if deletion is None else deletion
    applied, late = [], []
    for row in rows:
        is_late = before is not None and row.fast < before
        if row.gone:
            if row.fast > cleared and is_late:
                late.append((row, "late deletion"))
        elif row.fast <= cleared:
            # A visit that a deletion of the same run removes is not late.
            if not of_entity or row.fast <= earlier or is_late:
                late.append((row, "deleted"))
        elif not of_entity and old.deleted:
            late.append((row, "not back"))
        elif is_late and not rejoins:
            late.append((row, "older"))
        else:
            applied.append(row)
    if not applied and deletion is None:
        return state, late
    tombstone = next((row for row in rows if row.gone and row.fast == deletion), None)
    newest = applied[-1] if applied else tombstone
    assert newest is not None
    new = _State(
        fast=max(newest.fast, old.fast if old.fast is not None else newest.fast),
        slow=1 + (old.slow or 0),
        deleted=not applied,
        cleared=None if cleared < 0 else cleared,
        values={} if deletion is not None else dict(old.values),
        since=dict(old.since),
        supplied=old.supplied,
        supplied_version=old.supplied_version,
    )
    if applied:
        folded = _folded(rules, source, applied)
        kept = {name: (new.values[name], new.since.get(name)) for name in new.values}
        # Rows that are older than the state are merged below it.
        below = deletion is None and old.fast is not None and newest.fast < old.fast
        pair = (folded, kept) if below else (kept, folded)
        for name in rules.columns[source]:
            value, since = _merged(rules, name, *pair)
            new.values.pop(name, None)
            if value is not None:
                new.values[name] = value
                if since is not None:
                    new.since[name] = since
    if rules.ttl_in_key:
        new.values[rules.ttl_column] = rows[0].values[rules.ttl_column]
    if of_entity and (new.supplied_version is None or newest.fast >= new.supplied_version):
        new.supplied = {name: newest.values.get(name) for name in rules.supplied}
        new.supplied_version = newest.fast
    return new, late


def _may_have_state(rules: KeyRules, state: _State | None, rows: list[_Update], *, of_entity: bool) -> bool:
    """Return whether rows have a state or may create one: without an age, they may belong to an expired state."""
    if state is not None or not rules.ttl_days:
        return True
    return of_entity and (rules.ttl_in_key or any(row.values.get(rules.ttl_column) is not None for row in rows))


_Values = dict[str, tuple[Any, int | None]]


def _folded(rules: KeyRules, source: str, rows: list[_Update]) -> _Values:
    """Return the rows of a source as one: the values, and the fast version of each."""
    merged: _Values = {}
    for row in rows:
        names = rules.columns[source]
        present: _Values = {name: (value, row.fast) for name in names if (value := row.values.get(name)) is not None}
        for time, followers in rules.followers.items():
            # The time of a row counts only if it has a value for it.
            if time in present and not any(name in present for name in followers):
                del present[time]
        if row is rows[0]:
            merged = present
        else:
            both = {name: _merged(rules, name, merged, present) for name in names}
            merged = {name: pair for name, pair in both.items() if pair[0] is not None}
    return merged


def _merged(rules: KeyRules, name: str, old: _Values, new: _Values) -> tuple[Any, int | None]:
    """Merge one column of an older and a newer row; return the value and its fast version."""
    rule, by = rules.rule(name)
    (before, since), (given, version) = old.get(name, (None, None)), new.get(name, (None, None))
    if rule == "replace":
        if given is not None and (before is None or (version or 0) >= (since or 0)):
            return given, version
        return before, since
    if rule == "union":
        return _distinct([*(before or ()), *(given or ())]) if before is not None or given is not None else None, None
    if before is None or given is None:
        return (given if before is None else before), None
    if rule == "sum":
        return _added(before, given, is_float=name in rules.floats), None
    if rule == "append":
        return before + given, None
    if rule in ("min", "max"):
        return (min if rule == "min" else max)(before, given, key=_order), None
    assert rule == "last", rule
    old_time, new_time = old.get(by, (None, None))[0], new.get(by, (None, None))[0]
    is_newer = old_time is None or (new_time is not None and _order(new_time) >= _order(old_time))
    return (given if is_newer else before), None


def _added(one: Any, other: Any, *, is_float: bool) -> Any:
    if isinstance(one, decimal.Decimal):
        return _EXACT.add(one, other)
    return struct.unpack("f", struct.pack("f", one + other))[0] if is_float else one + other


def _once(rules: KeyRules, source: str, rows: list[_Update]) -> list[_Update]:
    """Return each row of a log once; rows with a NULL in the id all count."""
    names = rules.ids.get(source, ())
    if not names:
        return rows
    rest = [name for name in rules.all_columns[source] if name not in names]
    chosen: dict[Any, _Update] = {}
    others = []
    for row in rows:
        if any(row.values.get(name) is None for name in names):
            others.append(row)
            continue
        place = _order([row.values[name] for name in names])
        known = chosen.get(place)
        if known is None or _rest(row, rest) > _rest(known, rest):
            chosen[place] = row
    return [*chosen.values(), *others]


def _rest(row: _Update, names: Iterable[str]) -> Any:
    return _order([row.values.get(name) for name in names])


def _is_too_old(rules: KeyRules, row: _Update, today: int) -> bool:
    day = _day(rules, row.values.get(rules.ttl_column)) if rules.ttl_days else None
    return day is not None and day + rules.ttl_days < today


def _is_expired(rules: KeyRules, state: _State, today: int) -> bool:
    if not rules.ttl_days:
        return False
    value = state.values.get(rules.ttl_column)
    if value is None and rules.ttl_column in rules.supplied and state.supplied:
        value = state.supplied.get(rules.ttl_column)
    day = _day(rules, value)
    return day is not None and day + rules.ttl_days < today


def _day(rules: KeyRules, value: Any) -> int | None:
    if value is None:
        return None
    return int(value) // _DAY if rules.ttl_is_time else int(value)


def _compared(rules: KeyRules, state: _State | None, found: Any) -> list[str]:
    """Return the names of what differs: columns, versions, or `no state` and `has a state`."""
    if state is None or found is None:
        last = rules.runs[max(rules.runs)][0]
        may_lack = state is None or _is_expired(rules, state, last)
        return [] if found is None and may_lack else [NO_STATE if found is None else HAS_STATE]
    values, supplied = found["values"].asDict(), found["supplied"].asDict() if found["supplied"] is not None else None
    pairs: dict[str, tuple[Any, Any]] = {
        rules.version_name: (state.fast, found["fast"]),
        "SlowVersion": (state.slow, found["slow"]),
        "IsDeleted": (state.deleted, bool(found["deleted"])),
        "Since": (sorted(_since(rules, state).items()), sorted((p["key"], p["value"]) for p in found["since"] or ())),
    }
    pairs |= {name: (state.values.get(name), value) for name, value in values.items() if name not in rules.skipped}
    if supplied is not None or state.supplied is not None:
        names = {*(supplied or ()), *(name for name, value in (state.supplied or {}).items() if value is not None)}
        pairs |= {f"Fast.{name}": ((state.supplied or {}).get(name), (supplied or {}).get(name)) for name in names}
    return sorted(name for name, (one, other) in pairs.items() if _order(one) != _order(other))


def _since(rules: KeyRules, state: _State) -> dict[str, int]:
    """Return what the column `Since` must contain: versions that are older than that of the state."""
    assert state.fast is not None
    names = [name for name in state.values if rules.rule(name)[0] == "replace" and name not in rules.skipped]
    older = {name: state.since[name] for name in names if name in state.since}
    if state.supplied_version is not None:
        older[rules.fast_name] = state.supplied_version
    older = {name: version for name, version in older.items() if version < state.fast}
    return older | ({rules.deleted_name: state.cleared} if state.cleared is not None else {})


def _distinct(values: list[Any]) -> list[Any]:
    return list({_order(value): value for value in values}.values())


def _order(value: Any) -> Any:
    """Return a key that orders and compares values as Spark does: NULL first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if value != value else (1, value + 0.0)
    if isinstance(value, (list, tuple)):
        return (1, tuple(_order(one) for one in value))
    return (1, bytes(value) if isinstance(value, bytearray) else value)
