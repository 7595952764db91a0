"""Plan a comparison: match the columns of the nodes, choose the class of each, and the key."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trueup.config.wording import suggest
from trueup.errors import CheckFailed
from trueup.nodes.base import ComparedColumn, NodeColumn, NodeTable, Plan
from trueup.rows.classes import common_class, is_key_class
from trueup.rows.rules import NO_RULE, NUMBERS, Rule
from trueup.rows.spec import ValueClass

_ZONE = ', or set zone = "UTC" in its rules'
_FIX = "nothing was compared; fix the problems listed above and run again"


@dataclass(frozen=True)
class Request:
    """Which columns and which key to compare; empty: all columns, and the key of a node."""

    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)


def renamed(table: NodeTable, names: Mapping[str, str], node: str) -> NodeTable:
    """Return a table whose columns have the names of the mapping; raise CheckFailed for one that does not exist."""
    known = {column.name.casefold(): column.name for column in table.columns}
    unknown = {name: own for name, own in names.items() if own.casefold() not in known}
    if unknown:
        named = "there is no column {}, which the mapping has for {}"
        reasons = [f"node {node}: {named.format(own, name)}" for name, own in unknown.items()]
        raise CheckFailed(reasons, cure=_FIX)
    aliases = {known[own.casefold()]: name for name, own in names.items()}
    columns = tuple(replace(column, alias=aliases.get(column.name, "")) for column in table.columns)
    return replace(table, columns=columns)


def plan_columns(tables: Mapping[str, NodeTable], request: Request) -> Plan:
    """Return what is compared; raise CheckFailed with every reason why it cannot be."""
    reasons: list[str] = []
    matched = _matched(tables, reasons)
    reasons += _unknown(matched, request)
    key = _key(tables, matched, request)
    excluded = _chosen(matched, request.exclude_columns)
    # Without a key that all nodes have, that of a node: without it, a row is not known to be the same.
    own_keys = key or ([] if request.key else _keys_of_nodes(tables, matched))
    reasons += [f"--exclude-columns: {name} is a column of the key" for name in own_keys if name in excluded]
    listed = _chosen(matched, request.columns)
    chosen = [name for name in matched if name in key or not request.columns or name in listed]
    columns = []
    for name in [*key, *(name for name in chosen if name not in key)]:
        if name not in excluded:
            rule = _rule(name, matched, request, reasons, key)
            compared = _compared(
                name, matched[name], tables, reasons, rule, is_key=name in key, is_own=name in own_keys
            )
            if compared is not None:
                columns.append(compared)
    if not columns and not reasons:
        reasons.append("there are no columns to compare")
    if reasons:
        raise CheckFailed(reasons, cure=_FIX)
    names = {column.name for column in columns}
    left_out = tuple(name for name in matched if name not in names)
    return Plan(tuple(columns), len(key), secrets.token_bytes(16), left_out=left_out)


Matched = dict[str, dict[str, NodeColumn]]


def _matched(tables: Mapping[str, NodeTable], reasons: list[str]) -> Matched:
    """Return the columns by name, without regard to case where that is unique, in the order of the first node."""
    matched: Matched = {}
    for node, table in tables.items():
        folded: dict[str, list[str]] = {}
        for column in table.columns:
            folded.setdefault(_named(column).casefold(), []).append(column.name)
        for column in table.columns:
            name = _same_name(_named(column), matched, is_unique=len(folded[_named(column).casefold()]) == 1)
            if node in matched.setdefault(name, {}):
                reasons.append(f"node {node}: the column {column.name} exists twice")
            matched[name][node] = column
    return matched


def _named(column: NodeColumn) -> str:
    return column.alias or column.name


def _rule(name: str, matched: Matched, request: Request, reasons: list[str], key: Sequence[str]) -> Rule:
    rule = next((rule for column, rule in request.rules.items() if name in _chosen(matched, [column])), NO_RULE)
    if rule and name in key:
        reasons.append(f"rules.{name}: a key column has no rules, because rows are matched by it")
    elif rule and not key:
        reasons.append(f"rules.{name}: rows without a key are matched by all their values; choose a key with --key")
    return rule


def _same_name(name: str, matched: Matched, *, is_unique: bool) -> str:
    if name in matched or not is_unique:
        return name
    same = [other for other in matched if other.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else name


def _chosen(matched: Matched, names: Sequence[str]) -> list[str]:
    """Return the columns with these names; without regard to case, if there is none with the same case."""
    chosen = []
    for wanted in names:
        exact = [wanted] if wanted in matched else []
        chosen += exact or [name for name in matched if name.casefold() == wanted.casefold()]
    return chosen


def _unknown(matched: Matched, request: Request) -> list[str]:
    known = {name.casefold() for name in matched}
    options = {"--columns": request.columns, "--exclude-columns": request.exclude_columns, "--key": request.key}
    options["rules"] = tuple(request.rules)
    return [
        f"{option}: there is no column {name}. {suggest(name, tuple(matched))}"
        for option, names in options.items()
        for name in names
        if name.casefold() not in known
    ]


def _key(tables: Mapping[str, NodeTable], matched: Matched, request: Request) -> list[str]:
    """Return the key: the requested one, else the first key of a node whose columns all nodes have."""
    if request.key:
        return _chosen(matched, request.key)
    everywhere = {name for name, on in matched.items() if len(on) == len(tables)}
    for node, table in tables.items():
        for key in table.keys:
            names = [next(name for name, on in matched.items() if on.get(node) and on[node].name == one) for one in key]
            if set(names) <= everywhere:
                return names
    return []


def _keys_of_nodes(tables: Mapping[str, NodeTable], matched: Matched) -> list[str]:
    """Return the columns of the first key of each node."""
    first = {node: table.keys[0] for node, table in tables.items() if table.keys}
    return [name for name, on in matched.items() if any(on[node].name in first[node] for node in on if node in first)]


def _as_others(on: Mapping[str, NodeColumn]) -> dict[str, NodeColumn]:
    """Return the columns, of another class if that is the one of all other nodes."""
    chosen = dict(on)
    for node, column in on.items():
        others = {other.kind for name, other in on.items() if name != node}
        if len(others) == 1 and (kind := others.pop()) in column.also:
            chosen[node] = replace(column, kind=kind)
    return chosen


def _compared(
    name: str,
    on: Mapping[str, NodeColumn],
    tables: Mapping[str, NodeTable],
    reasons: list[str],
    rule: Rule,
    *,
    is_key: bool,
    is_own: bool,
) -> ComparedColumn | None:
    """Return how a column is compared; add the reason if it cannot be. `is_own`: it is part of the key of a node."""
    lacking = [node for node in tables if node not in on]
    if lacking:
        cure = "choose another key with --key" if is_key else "leave it out with --exclude-columns"
        if is_own and not is_key:
            cure = "it is part of the key of a node: name the other column in [compare.NAME.nodes.NODE.columns] (--map)"
        reasons.append(f"column {name} is not on {', '.join(lacking)}; {cure}")
        return None
    unknown = [f"column {name} on {node}: {column.why}" for node, column in on.items() if column.kind is None]
    if unknown:
        reasons += [f"{text}; leave it out with --exclude-columns" for text in unknown]
        return None
    on = {node: replace(one, kind="json") if rule.set and "json" in one.also else one for node, one in on.items()}
    on = _as_others(on)
    kinds: list[ValueClass] = [column.kind for column in on.values() if column.kind is not None]
    common = common_class(kinds) or _by_rule(kinds, rule)
    listed = ", ".join(f"{column.type} on {node}" for node, column in on.items())
    if common is None:
        reasons.append(
            f"column {name}: {listed} cannot be compared exactly; leave it out with --exclude-columns, or read it as"
            f" another type{_ZONE if {*kinds} == {'timestamp', 'instant'} else ''}"
        )
        return None
    if is_key and not is_key_class(kinds):
        reasons.append(f"key column {name}: rows cannot be matched by {listed}; choose another key with --key")
        return None
    # In the order of the nodes.
    compared = ComparedColumn(name, common, {node: on[node] for node in tables}, rule)
    if problem := rule.problem(common, compared.parsed):
        reasons.append(f"rules.{name}: {problem}")
    return compared


def _by_rule(kinds: Sequence[ValueClass], rule: Rule) -> ValueClass | None:
    """Return the class of columns that only a rule makes comparable."""
    if rule.is_numeric and {*kinds} <= {*NUMBERS}:
        # As texts, which are parsed as numbers.
        return "text"
    return "timestamp" if rule.zone and {*kinds} == {"timestamp", "instant"} else None
