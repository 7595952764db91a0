"""Read a plan from YAML and check all names in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import permutations, product
from pathlib import Path
from typing import Any

from trueup.db.names import display_name, parse_column_names, quoted_name, table_spellings
from trueup.db.scan import problem_with
from trueup.errors import ConfigError
from trueup.rows.keys import KeyValues, canonical
from trueup.rows.spec import TableSpec
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.plan import Action, Custom, Delete, Insert, Keep, KeyRange, Plan, Rule, Skip

KINDS = ("missing", "extra", "changed")
_WHEN = ("kind", "pair", "keys", "columns", "only_columns", "where")


@dataclass(frozen=True)
class Known:
    """The names that a plan can use."""

    nodes: tuple[str, ...]
    spec: TableSpec
    # Columns that a plan can set: compared, writable, and not part of the key.
    settable: tuple[str, ...]


def read_document(path: Path) -> Mapping[str, Any]:
    """Return the content of a YAML file; every scalar is its text, because the key 007 is not 7."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"cannot read the plan {path}: {reason}", cure="check the path, or create a plan with --write-plan"
        ) from None
    try:
        document = yaml.load(text, _loader())
    except yaml.YAMLError as error:
        raise ConfigError(f"the plan {path} is not YAML: {error}", cure="fix the file at this position") from None
    if not isinstance(document, Mapping) or not isinstance(document.get("tables"), Mapping):
        raise _wrong("", "`tables:` with an entry per table is missing")
    _only(document, ("version", "tables"), "")
    return document


def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        # Only an unquoted null is not a text.
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"))] for first in ("~", "n", "N", "")
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if not isinstance(name, str) or name in seen:
                    why = f"{name!r} occurs twice" if isinstance(name, str) else "a name is expected"
                    raise yaml.constructor.ConstructorError(None, None, why, key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return Loader


def plan_for(document: Mapping[str, Any], nodes: tuple[str, ...], layout: Layout) -> Plan:
    """Return the plan for one table on these nodes."""
    names = [layout.carried[place].name for place in layout.taken]
    settable = tuple(name for name in names if name not in layout.spec.key_names)
    return plan_of(document, Known(nodes, layout.spec, settable))


def has_plan_for(document: Mapping[str, Any], spec: TableSpec) -> bool:
    """Return whether the plan has an entry for a table."""
    return any((spec.schema, spec.table) in table_spellings(name) for name in document["tables"])


def check_entries(document: Mapping[str, Any], tables: Sequence[str]) -> None:
    """Raise ConfigError for entries of tables that are not in a run: they would decide nothing."""
    known = {table_spellings(name)[0]: name for name in tables}
    for entry in document["tables"]:
        if not any(spelling in known for spelling in table_spellings(entry)):
            close = get_close_matches(entry, tables, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise _wrong(str(entry), f"this table is not in the run{hint}")


def plan_of(document: Mapping[str, Any], known: Known) -> Plan:
    """Return the plan for one table, with names checked against the known ones."""
    spec, table = known.spec, display_name(known.spec.schema, known.spec.table)
    names = [name for name in document["tables"] if (spec.schema, spec.table) in table_spellings(name)]
    if len(names) > 1:
        raise _wrong("", f"several entries are for {table}: {', '.join(names)}")
    if names:
        return _table(document["tables"][names[0]], known, names[0])
    raise ConfigError(
        f"the plan has no entry for {table}; it has {', '.join(map(str, document['tables']))}",
        cure="add the table under tables:",
    )


def _table(entry: Any, known: Known, location: str) -> Plan:
    _only(_mapping(entry, location), ("default", "rules", "rows"), location)
    rules = [
        _rule(rule, known, f"{location}: rule {number}")
        for number, rule in enumerate(_list(entry.get("rules"), location), 1)
    ]
    rows: dict[KeyValues, Action] = {}
    for number, row in enumerate(_list(entry.get("rows"), location), 1):
        place = f"{location}: row {number}"
        _only(_mapping(row, place), ("key", "action"), place)
        key = _key(row.get("key"), known.spec, place)
        if key in rows:
            raise _wrong(place, f"the key {', '.join(key)} occurs twice")
        rows[key] = _action(row.get("action"), known, place)
    default = entry.get("default")
    return Plan(tuple(rules), rows, None if default is None else _action(default, known, f"{location}: default"))


def _rule(rule: Any, known: Known, location: str) -> Rule:
    _only(_mapping(rule, location), ("name", "when", "action"), location)
    if rule.get("name"):
        location = f"{location} ({rule['name']})"
    when = _mapping(rule.get("when") or {}, f"{location}: when")
    _only(when, _WHEN, f"{location}: when")
    where = str(when.get("where") or "")
    problem = problem_with(where) if where else None
    if problem:
        raise _wrong(f"{location}: where", f"it is not a single SQL expression: {problem}")
    keys, ranges = _keys(when.get("keys"), known.spec, f"{location}: keys")
    names = known.spec.column_names
    return Rule(
        _action(rule.get("action"), known, location),
        kinds=_names(when.get("kind"), KINDS, f"{location}: kind"),
        pair=_pair(when.get("pair"), known.nodes, f"{location}: pair"),
        keys=keys,
        ranges=ranges,
        columns=_names(when.get("columns"), names, f"{location}: columns"),
        only_columns=_names(when.get("only_columns"), names, f"{location}: only_columns"),
        where=where,
        place=f"the plan: {location}",
    )


def _action(action: Any, known: Known, location: str) -> Action:
    plain: dict[str, Callable[[], Action]] = {"insert": Insert, "delete": Delete, "skip": Skip}
    if isinstance(action, str) and action in plain:
        return plain[action]()
    if isinstance(action, Mapping) and list(action) == ["keep"]:
        return Keep(known.nodes.index(_one_of(action["keep"], known.nodes, f"{location}: keep")))
    if isinstance(action, Mapping) and list(action) == ["row"]:
        return _custom(_mapping(action["row"], f"{location}: row"), known, f"{location}: row")
    raise _wrong(
        location, "the action is one of: insert, delete, skip, {keep: NODE}, {row: {from: NODE, columns: {…}}}"
    )


def _custom(row: Mapping[str, Any], known: Known, location: str) -> Custom:
    _only(row, ("from", "columns"), location)
    taken: dict[str, int] = {}
    values: dict[str, str | None] = {}
    for name, origin in _by_name(row.get("columns") or {}, known.settable, f"{location}: columns").items():
        if isinstance(origin, Mapping) and list(origin) == ["value"]:
            value = origin["value"]
            if value is not None and not isinstance(value, str):
                raise _wrong(f"{location}: {name}", "a value is a text or null")
            values[name] = value
        else:
            taken[name] = known.nodes.index(_one_of(origin, known.nodes, f"{location}: {name}"))
    base = known.nodes.index(_one_of(row.get("from"), known.nodes, f"{location}: from"))
    return Custom(base, taken, values, f"the plan: {location}")


def _keys(value: Any, spec: TableSpec, location: str) -> tuple[frozenset[KeyValues] | None, tuple[KeyRange, ...]]:
    if value is None:
        return None, ()
    keys: set[KeyValues] = set()
    ranges: list[KeyRange] = []
    for entry in _list(value, location):
        if _is_range(entry, spec):
            edges = [None if entry.get(name) is None else _key(entry[name], spec, location) for name in ("from", "to")]
            ranges.append(KeyRange(edges[0], edges[1]))
        else:
            keys.add(_key(entry, spec, location))
    return frozenset(keys), tuple(ranges)


def _is_range(entry: Any, spec: TableSpec) -> bool:
    """Return whether an entry is a range, not a key; the key may have columns `from` and `to`."""
    if not isinstance(entry, Mapping) or not set(entry) <= {"from", "to"}:
        return False
    return not set(entry) & set(spec.key_names) or any(isinstance(edge, (Mapping, list)) for edge in entry.values())


def _key(value: Any, spec: TableSpec, location: str) -> KeyValues:
    """Return a key from its value, its values by column name, or its values in the order of the columns."""
    names = spec.key_names
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        by_name = _by_name(value, names, location)
        value = [by_name.get(name) for name in names]
    if not isinstance(value, list) or len(value) != len(names) or not all(isinstance(part, str) for part in value):
        raise _wrong(location, f"a key is {{{', '.join(f'{name}: VALUE' for name in names)}}}")
    return canonical(spec, value)


def _pair(value: Any, nodes: Sequence[str], location: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2:
        left, right = (nodes.index(_one_of(name, nodes, location)) for name in value)
        if left != right:
            return left, right
    pairs = [
        pair
        for pair in permutations(range(len(nodes)), 2)
        if value in map("/".join, product(*((nodes[node], quoted_name(nodes[node])) for node in pair)))
    ]
    if len(pairs) == 1:
        return pairs[0]
    raise _wrong(location, f"a pair is two nodes, for example [{nodes[0]}, {nodes[1]}]")


def _names(value: Any, known: Sequence[str], location: str) -> frozenset[str] | None:
    if value is None:
        return None
    return frozenset(
        _one_of(name, known, location) for name in ([value] if isinstance(value, str) else _list(value, location))
    )


def _one_of(name: Any, known: Sequence[str], location: str) -> str:
    """Return the known name that is meant: as it is written, or in double quotes as in SQL."""
    if isinstance(name, str):
        if name in known:
            return name
        if name.startswith('"'):
            (unquoted,) = parse_column_names(name)[:1]
            if unquoted in known and name == quoted_name(unquoted):
                return unquoted
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
    raise _wrong(location, f"unknown name {name}; {hint}")


def _by_name(values: Any, known: Sequence[str], location: str) -> dict[str, Any]:
    """Return a mapping by the known names that its keys mean."""
    by_name: dict[str, Any] = {}
    for written, value in _mapping(values, location).items():
        name = _one_of(written, known, location)
        if name in by_name:
            raise _wrong(location, f"{name} occurs twice")
        by_name[name] = value
    return by_name


def _only(names: Mapping[str, Any], known: Sequence[str], location: str) -> None:
    for name in names:
        _one_of(name, known, location)


def _mapping(value: Any, location: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(location, "a mapping is expected")
    return value


def _list(value: Any, location: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(location, "a list is expected")
    return value


def _wrong(location: str, reason: str) -> ConfigError:
    place = f"the plan: {location}" if location else "the plan"
    return ConfigError(f"{place}: {reason}", cure="fix the plan; docs/repair.md describes its format")
