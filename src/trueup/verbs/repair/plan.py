"""A plan: rows, rules and a default of a person's, and the first of them that fits decides what becomes of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.rows.encode import trim_scale
from trueup.rows.keys import KeyValues, literals
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy_text import NULL, field_of, split
from trueup.task.job import Job
from trueup.verbs.repair.conditions import answers
from trueup.verbs.repair.lines import Line
from trueup.verbs.repair.modes import Batch, Bidirectional, Decision, Gone, Leave, Like, Made

if TYPE_CHECKING:
    from psycopg import sql

UNDECIDED = "no rule of the plan decides"
SKIPPED = "the plan skips it"


@dataclass(frozen=True)
class Keep:
    """All nodes become like this one."""

    node: int


@dataclass(frozen=True)
class Insert:
    """Where the row lacks, it is inserted from whoever holds it."""


@dataclass(frozen=True)
class Delete:
    """The row is deleted on every node."""


@dataclass(frozen=True)
class Skip:
    """Left as it is."""


@dataclass(frozen=True)
class Custom:
    """A row made of columns of several nodes: from `base`, except that these columns come from others or are given."""

    base: int
    taken: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, str | None] = field(default_factory=dict)


Action = Keep | Insert | Delete | Skip | Custom


@dataclass(frozen=True)
class KeyRange:
    """Keys from one to another, both of them too; None is an open end."""

    first: KeyValues | None
    last: KeyValues | None


@dataclass(frozen=True)
class Rule:
    """What must be true of a key (None: anything), and what is done then."""

    action: Action
    kinds: frozenset[str] | None = None
    pair: tuple[int, int] | None = None
    # One of these keys, or in one of these ranges.
    keys: frozenset[KeyValues] | None = None
    ranges: tuple[KeyRange, ...] = ()
    # One of these columns differs; nothing but these differs.
    columns: frozenset[str] | None = None
    only_columns: frozenset[str] | None = None
    where: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of one table, as a mode."""

    rules: tuple[Rule, ...] = ()
    rows: Mapping[KeyValues, Action] = field(default_factory=dict)
    default: Action | None = None
    # What a node said of the conditions of each rule (ranges, `where`), key by key.
    holds: Sequence[Sequence[bool]] = ()

    def known(self, job: Job, batch: Batch) -> Plan:
        """Ask a node for what only SQL can say; nothing is asked where no rule needs it."""
        asked = [condition for rule in self.rules for condition in _conditions(batch.layout.spec, rule)]
        return replace(self, holds=answers(job, batch, asked)) if asked else self

    def decide(self, batch: Batch, at: int) -> Decision:
        """A row of the plan, else the first rule that fits, else the default."""
        own = self.rows.get(batch.keys[at])
        if own is not None:
            return _decision(own, batch, at)
        asked = 0
        for rule in self.rules:
            count = bool(rule.ranges) + bool(rule.where)
            holds = self.holds[at][asked : asked + count] if count else ()
            asked += count
            if _fits(rule, batch, at, holds):
                return _decision(rule.action, batch, at)
        return _decision(self.default, batch, at) if self.default is not None else Leave(UNDECIDED)


def _conditions(spec: TableSpec, rule: Rule) -> list[sql.Composable]:
    found: list[sql.Composable] = []
    if rule.ranges:
        found.append(sql.SQL(" OR ").join(_in_range(spec, each) for each in rule.ranges))
    if rule.where:
        # A line of its own: a comment at its end must not swallow the bracket.
        found.append(sql.SQL("\n{}\n").format(sql.SQL(rule.where)))
    return found


def _in_range(spec: TableSpec, each: KeyRange) -> sql.Composed:
    # By the type's own order, as a person would expect; not by how blocks are cut.
    key = [replace(part, order="type") for part in spec.key]
    mine = sql.SQL(", ").join(sql.SQL("key.{}").format(sql.Identifier(name)) for name in spec.key_names)
    edges = [(sql.SQL(">="), each.first), (sql.SQL("<="), each.last)]
    tests = [
        sql.SQL("ROW({}) {} ROW({})").format(mine, sign, sql.SQL(", ").join(literals(key, edge)))
        for sign, edge in edges
        if edge is not None
    ]
    return sql.SQL("({})").format(sql.SQL(" AND ").join(tests) if tests else sql.SQL("true"))


def _fits(rule: Rule, batch: Batch, at: int, holds: Sequence[bool]) -> bool:
    in_range, meets = False, True
    if rule.ranges:
        in_range, holds = holds[0], holds[1:]
    if rule.where:
        meets = holds[0]
    if not meets or ((rule.keys is not None or rule.ranges) and not (in_range or batch.keys[at] in (rule.keys or ()))):
        return False
    lines = batch.lines(at)
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
    """The compared columns in which two rows differ; a row that is not there has none."""
    if left is None or right is None or left.hash == right.hash:
        return set()
    layout = batch.layout
    mine, theirs = split(left.fields), split(right.fields)
    return {layout.carried[at].name for at in layout.taken if not _same(batch, at, mine[at], theirs[at])}


def _same(batch: Batch, at: int, mine: bytes, theirs: bytes) -> bool:
    if mine == theirs:
        return True
    by_value = batch.layout.carried[at].encoding == "numeric" and batch.layout.spec.numeric == "value"
    return by_value and NULL not in (mine, theirs) and trim_scale(mine.decode()) == trim_scale(theirs.decode())


def _decision(action: Action, batch: Batch, at: int) -> Decision:
    match action:
        case Keep(node):
            return Like(node)
        case Insert():
            return Bidirectional().decide(batch, at)
        case Delete():
            return Gone()
        case Skip():
            return Leave(SKIPPED)
        case Custom():
            return _custom(action, batch, at)


def _custom(action: Custom, batch: Batch, at: int) -> Decision:
    lines = batch.lines(at)
    needed = {action.base, *action.taken.values()}
    lacking = [batch.nodes[node] for node in sorted(needed) if lines[node] is None]
    if lacking:
        return Leave(f"the plan takes columns of {', '.join(lacking)}, where there is no row")
    fields = {node: split(line.fields) for node, line in enumerate(lines) if line is not None}
    made = []
    for place, column in enumerate(batch.layout.carried):
        if column.name in action.given:
            made.append(field_of(action.given[column.name]))
        else:
            made.append(fields[action.taken.get(column.name, action.base)][place])
    return Made(dict.fromkeys(range(len(lines)), made))
