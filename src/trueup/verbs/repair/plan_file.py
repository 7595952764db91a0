"""The plan as YAML: read and checked to the last name, and written as a commented file to start from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from trueup.db.names import parse_table_name
from trueup.errors import ConfigError
from trueup.rows.filter import problem_with
from trueup.rows.keys import KeyValues, canonical
from trueup.rows.spec import TableSpec
from trueup.verbs.repair.plan import Action, Custom, Delete, Insert, Keep, KeyRange, Plan, Rule, Skip

KINDS = ("missing", "extra", "changed")
_WHEN = ("kind", "pair", "keys", "columns", "only_columns", "where")


@dataclass(frozen=True)
class Known:
    """The names that a plan may use."""

    nodes: tuple[str, ...]
    spec: TableSpec
    # Columns that can be given: those that are compared, can be written, and are no part of the key.
    settable: tuple[str, ...]


def read_document(path: Path) -> Mapping[str, Any]:
    """The YAML of a file; every scalar is the text that stands there, for a key 007 is not 7."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"cannot read the plan {path}: {why}", cure="check the path, or make one with --write-plan"
        ) from None
    try:
        found = yaml.load(text, _loader())
    except yaml.YAMLError as error:
        raise ConfigError(f"the plan {path} is not YAML: {error}", cure="mend it at that place") from None
    if not isinstance(found, Mapping) or not isinstance(found.get("tables"), Mapping):
        raise _wrong("", "a plan has `tables:` with an entry for each table")
    _only(found, ("version", "tables"), "")
    return found


def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        # Only a bare null is more than its text.
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"))] for first in ("~", "n", "N", "")
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if not isinstance(name, str) or name in seen:
                    why = f"{name!r} stands here twice" if isinstance(name, str) else "a name is expected"
                    raise yaml.constructor.ConstructorError(None, None, why, key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return Loader


def plan_of(document: Mapping[str, Any], known: Known) -> Plan:
    """The plan of the table at hand."""
    spec = known.spec
    for name, entry in document["tables"].items():
        schema, table = parse_table_name(str(name))
        if (spec.schema, spec.table) in [(s, t) for s in schema.spellings() for t in table.spellings()]:
            return _table(entry, known, str(name))
    raise ConfigError(
        f"the plan has no entry for {spec.schema}.{spec.table}; it has {', '.join(map(str, document['tables']))}",
        cure="name the table under tables:",
    )


def _table(entry: Any, known: Known, at: str) -> Plan:
    _only(_mapping(entry, at), ("default", "rules", "rows"), at)
    rules = [_rule(rule, known, f"{at}: rule {number}") for number, rule in enumerate(_list(entry.get("rules"), at), 1)]
    rows: dict[KeyValues, Action] = {}
    for number, row in enumerate(_list(entry.get("rows"), at), 1):
        place = f"{at}: row {number}"
        _only(_mapping(row, place), ("key", "action"), place)
        key = _key(row.get("key"), known.spec, place)
        if key in rows:
            raise _wrong(place, f"the key {', '.join(key)} stands there twice")
        rows[key] = _action(row.get("action"), known, place)
    default = entry.get("default")
    return Plan(tuple(rules), rows, None if default is None else _action(default, known, f"{at}: default"))


def _rule(rule: Any, known: Known, at: str) -> Rule:
    _only(_mapping(rule, at), ("name", "when", "action"), at)
    if rule.get("name"):
        at = f"{at} ({rule['name']})"
    when = _mapping(rule.get("when") or {}, f"{at}: when")
    _only(when, _WHEN, f"{at}: when")
    where = str(when.get("where") or "")
    problem = problem_with(where) if where else None
    if problem:
        raise _wrong(f"{at}: where", f"it is not one expression: {problem}")
    keys, ranges = _keys(when.get("keys"), known.spec, f"{at}: keys")
    names = known.spec.column_names
    return Rule(
        _action(rule.get("action"), known, at),
        kinds=_names(when.get("kind"), KINDS, f"{at}: kind"),
        pair=_pair(when.get("pair"), known.nodes, f"{at}: pair"),
        keys=keys,
        ranges=ranges,
        columns=_names(when.get("columns"), names, f"{at}: columns"),
        only_columns=_names(when.get("only_columns"), names, f"{at}: only_columns"),
        where=where,
    )


def _action(action: Any, known: Known, at: str) -> Action:
    plain: dict[str, Callable[[], Action]] = {"insert": Insert, "delete": Delete, "skip": Skip}
    if isinstance(action, str) and action in plain:
        return plain[action]()
    if isinstance(action, Mapping) and list(action) == ["keep"]:
        return Keep(known.nodes.index(_one_of(action["keep"], known.nodes, f"{at}: keep")))
    if isinstance(action, Mapping) and list(action) == ["row"]:
        return _custom(_mapping(action["row"], f"{at}: row"), known, f"{at}: row")
    raise _wrong(at, "the action is one of: insert, delete, skip, {keep: NODE}, {row: {from: NODE, columns: {…}}}")


def _custom(row: Mapping[str, Any], known: Known, at: str) -> Custom:
    _only(row, ("from", "columns"), at)
    taken: dict[str, int] = {}
    given: dict[str, str | None] = {}
    for name, origin in _mapping(row.get("columns") or {}, f"{at}: columns").items():
        _one_of(name, known.settable, f"{at}: columns")
        if isinstance(origin, Mapping) and list(origin) == ["value"]:
            value = origin["value"]
            if value is not None and not isinstance(value, str):
                raise _wrong(f"{at}: {name}", "a value is a text or null")
            given[name] = value
        else:
            taken[name] = known.nodes.index(_one_of(origin, known.nodes, f"{at}: {name}"))
    return Custom(known.nodes.index(_one_of(row.get("from"), known.nodes, f"{at}: from")), taken, given)


def _keys(given: Any, spec: TableSpec, at: str) -> tuple[frozenset[KeyValues] | None, tuple[KeyRange, ...]]:
    if given is None:
        return None, ()
    keys: set[KeyValues] = set()
    ranges: list[KeyRange] = []
    for each in _list(given, at):
        if isinstance(each, Mapping) and set(each) <= {"from", "to"} and not set(each) & set(spec.key_names):
            edges = [None if each.get(name) is None else _key(each[name], spec, at) for name in ("from", "to")]
            ranges.append(KeyRange(edges[0], edges[1]))
        else:
            keys.add(_key(each, spec, at))
    return frozenset(keys), tuple(ranges)


def _key(given: Any, spec: TableSpec, at: str) -> KeyValues:
    """A key: its value, or the values by column name, or in the order of the columns."""
    names = spec.key_names
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        _only(given, names, at)
        given = [given.get(name) for name in names]
    if not isinstance(given, list) or len(given) != len(names) or not all(isinstance(each, str) for each in given):
        raise _wrong(at, f"a key is {{{', '.join(f'{name}: VALUE' for name in names)}}}")
    return canonical(spec, given)


def _pair(given: Any, nodes: Sequence[str], at: str) -> tuple[int, int] | None:
    if given is None:
        return None
    for left, one in enumerate(nodes):
        for right, other in enumerate(nodes):
            if left != right and given in (f"{one}/{other}", [one, other]):
                return left, right
    raise _wrong(at, f"a pair is two of the nodes, as {nodes[0]}/{nodes[1]}")


def _names(given: Any, known: Sequence[str], at: str) -> frozenset[str] | None:
    if given is None:
        return None
    return frozenset(_one_of(name, known, at) for name in ([given] if isinstance(given, str) else _list(given, at)))


def _one_of(name: Any, known: Sequence[str], at: str) -> str:
    if isinstance(name, str) and name in known:
        return name
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
    raise _wrong(at, f"{name} is not known{hint}")


def _only(found: Mapping[str, Any], known: Sequence[str], at: str) -> None:
    for name in found:
        _one_of(name, known, at)


def _mapping(found: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise _wrong(at, "names and values are expected here")
    return found


def _list(found: Any, at: str) -> list[Any]:
    if found is None:
        return []
    if not isinstance(found, list):
        raise _wrong(at, "a list is expected here")
    return found


def _wrong(at: str, why: str) -> ConfigError:
    return ConfigError(
        f"the plan: {at}: {why}" if at else f"the plan: {why}", cure="mend the plan; docs/repair.md has all of it"
    )
