"""A plan that the user wrote: rows, rules and a default; the first that fits decides what happens to a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from psycopg import sql

from trueup.rows.encode import trim_scale
from trueup.rows.keys import KeyValues, literals
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy_text import NULL, field_of, split
from trueup.task.job import Job
from trueup.verbs.repair.conditions import Condition, evaluate, name_of_key
from trueup.verbs.repair.lines import Line
from trueup.verbs.repair.modes import Batch, Bidirectional, Decision, Gone, Leave, Like, Made

UNDECIDED = "no row, rule or default of the plan applies"
SKIPPED = "the plan skips it"


@dataclass(frozen=True)
class Keep:
    """All nodes become like this one."""

    node: int


@dataclass(frozen=True)
class Insert:
    """The row is inserted on the nodes that lack it."""


@dataclass(frozen=True)
class Delete:
    """The row is deleted on every node."""


@dataclass(frozen=True)
class Skip:
    """The key is left as it is."""


@dataclass(frozen=True)
class Custom:
    """A row put together: the row of `base`, with some columns of other nodes or with given values."""

    base: int
    taken: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, str | None] = field(default_factory=dict)
    # Where it is in the plan, for messages.
    place: str = ""


Action = Keep | Insert | Delete | Skip | Custom


@dataclass(frozen=True)
class KeyRange:
    """Keys from one to another, both included; None is an open end."""

    first: KeyValues | None
    last: KeyValues | None


@dataclass(frozen=True)
class Value:
    """A value in the plan for a column (None: NULL), and its place for messages."""

    place: str
    column: str
    text: str | None


@dataclass(frozen=True)
class Rule:
    """Conditions on a key (None: no condition), and the action if all of them hold."""

    action: Action
    kinds: frozenset[str] | None = None
    pair: tuple[int, int] | None = None
    # The key is one of these, or in one of these ranges.
    keys: frozenset[KeyValues] | None = None
    ranges: tuple[KeyRange, ...] = ()
    # One of these columns differs; only these columns differ.
    columns: frozenset[str] | None = None
    only_columns: frozenset[str] | None = None
    where: str = ""
    # Which rule it is, for messages.
    place: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of one table, as a mode."""

    rules: tuple[Rule, ...] = ()
    rows: Mapping[KeyValues, Action] = field(default_factory=dict)
    default: Action | None = None
    # The values of the SQL conditions of the rules (ranges, `where`), per key.
    holds: Sequence[Sequence[bool]] = ()

    def values(self, key: Sequence[str]) -> Iterator[Value]:
        """Yield the values in actions, and the ends of key ranges; `key` is the names of the key columns."""
        for rule in self.rules:
            for edge in (edge for each in rule.ranges for edge in (each.first, each.last) if edge is not None):
                yield from (Value(f"{rule.place}: keys", name, text) for name, text in zip(key, edge, strict=True))
        for action in (*(rule.action for rule in self.rules), *self.rows.values(), self.default):
            if isinstance(action, Custom):
                yield from (Value(action.place, name, text) for name, text in action.values.items())

    def known(self, job: Job, batch: Batch) -> Plan:
        """Return the plan with the values of its SQL conditions for these keys; no query if it has none."""
        conditions = [condition for rule in self.rules for condition in _conditions(batch, rule)]
        return replace(self, holds=evaluate(job, batch, conditions)) if conditions else self

    def decide(self, batch: Batch, place: int) -> Decision:
        """Apply the entry of the key in `rows`, else the first rule that fits, else the default."""
        action = self.rows.get(batch.keys[place])
        if action is not None:
            return _decision(action, batch, place)
        start = 0
        for rule in self.rules:
            count = bool(rule.ranges) + bool(rule.where)
            holds = self.holds[place][start : start + count] if count else ()
            start += count
            if _fits(rule, batch, place, holds):
                return _decision(rule.action, batch, place)
        return _decision(self.default, batch, place) if self.default is not None else Leave(UNDECIDED)


def _conditions(batch: Batch, rule: Rule) -> list[Condition]:
    conditions: list[Condition] = []
    if rule.ranges:
        row = name_of_key(batch.nodes)
        tests = sql.SQL(" OR ").join(_in_range(batch.layout.spec, row, key_range) for key_range in rule.ranges)
        conditions.append(Condition(f"{rule.place}: keys", tests))
    if rule.where:
        # On its own line: a comment at its end must not include the closing bracket.
        conditions.append(Condition(f"{rule.place}: where", sql.SQL("\n{}\n").format(sql.SQL(rule.where))))
    return conditions


def _in_range(spec: TableSpec, row: str, key_range: KeyRange) -> sql.Composed:
    # In the order of the type, as a user expects, not in the order of blocks.
    key = [replace(part, order="type") for part in spec.key]
    columns = sql.SQL(", ").join(sql.Identifier(row, name) for name in spec.key_names)
    edges = [(sql.SQL(">="), key_range.first), (sql.SQL("<="), key_range.last)]
    tests = [
        sql.SQL("ROW({}) {} ROW({})").format(columns, sign, sql.SQL(", ").join(literals(key, edge)))
        for sign, edge in edges
        if edge is not None
    ]
    return sql.SQL("({})").format(sql.SQL(" AND ").join(tests) if tests else sql.SQL("true"))


def _fits(rule: Rule, batch: Batch, place: int, holds: Sequence[bool]) -> bool:
    in_range, meets = False, True
    if rule.ranges:
        in_range, holds = holds[0], holds[1:]
    if rule.where:
        meets = holds[0]
    has_keys = rule.keys is not None or bool(rule.ranges)
    if not meets or (has_keys and not (in_range or batch.keys[place] in (rule.keys or ()))):
        return False
    lines = batch.lines(place)
    pairs = [rule.pair] if rule.pair else list(combinations(range(len(lines)), 2))
    if rule.kinds is not None and not any(_kind(lines[a], lines[b]) in rule.kinds for a, b in pairs):
        return False
    if rule.columns is None and rule.only_columns is None:
        return True
    changed = set().union(*(_changed(batch, lines[a], lines[b]) for a, b in pairs))
    if rule.columns is not None and not changed & rule.columns:
        return False
    return rule.only_columns is None or (bool(changed) and changed <= rule.only_columns)


def _kind(left: Line | None, right: Line | None) -> str:
    if left is None or right is None:
        return "" if left is right else "extra" if left is None else "missing"
    return "" if left.hash == right.hash else "changed"


def _changed(batch: Batch, left: Line | None, right: Line | None) -> set[str]:
    """Return the compared columns in which two rows differ; none if one of the rows does not exist."""
    if left is None or right is None or left.hash == right.hash:
        return set()
    layout = batch.layout
    left_fields, right_fields = split(left.fields), split(right.fields)
    return {
        layout.carried[column].name
        for column in layout.taken
        if not _same(batch, column, left_fields[column], right_fields[column])
    }


def _same(batch: Batch, column: int, left: bytes, right: bytes) -> bool:
    if left == right:
        return True
    by_value = batch.layout.carried[column].encoding == "numeric" and batch.layout.spec.numeric == "value"
    return by_value and NULL not in (left, right) and trim_scale(left.decode()) == trim_scale(right.decode())


def _decision(action: Action, batch: Batch, place: int) -> Decision:
    match action:
        case Keep(node):
            return Like(node)
        case Insert():
            return Bidirectional().decide(batch, place)
        case Delete():
            return Gone()
        case Skip():
            return Leave(SKIPPED)
        case Custom():
            return _custom(action, batch, place)


def _custom(action: Custom, batch: Batch, place: int) -> Decision:
    lines = batch.lines(place)
    needed = {action.base, *action.taken.values()}
    missing = [batch.nodes[node] for node in sorted(needed) if lines[node] is None]
    if missing:
        return Leave(f"the plan takes columns from {', '.join(missing)}, which has no such row")
    fields = {node: split(line.fields) for node, line in enumerate(lines) if line is not None}
    made = []
    for number, column in enumerate(batch.layout.carried):
        if column.name in action.values:
            made.append(field_of(action.values[column.name]))
        else:
            made.append(fields[action.taken.get(column.name, action.base)][number])
    return Made(dict.fromkeys(range(len(lines)), made))
