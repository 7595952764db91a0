"""One task of a repair: read some keys on all nodes, decide, and say for every node which rows go and which come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trueup.db.reader import Reader, TooMuch
from trueup.diff.past import UNKNOWN, Hash
from trueup.diff.work import Job, More
from trueup.engine.work import Room
from trueup.repair.conditions import Conditions
from trueup.repair.layout import Layout
from trueup.repair.lines import Line, inside_filter, join, key_id, lines_by_key, split
from trueup.repair.modes import ACTS, Act, Batch, Decision, Gone, Leave, Like, Made, Mode
from trueup.rows.keys import KeyValues

# Rows are read in portions that aim at this many bytes of a node, whatever the width of a row, and never hold more
# than the second number unless one row does.
_BATCH_BYTES = 2_000_000
_MOST_BYTES = 32_000_000
_FIRST_BATCH, _LARGEST_BATCH = 64, 5000
_DONE: dict[Act, str] = {"insert": "inserted", "update": "updated", "delete": "deleted"}
# Rows of each act and node that are shown.
EXAMPLES = 3
STALE = "the row is not as the report says"
UNSAID = "the report does not say what the node had"

# What the rows of the run at hand taught this process: how many of them are a good batch.
_batches: dict[str, int] = {}


@dataclass(frozen=True)
class RepairJob:
    """What all tasks of a repair share."""

    job: Job
    layout: Layout
    mode: Mode
    skip_stale: bool = True
    # A dry run needs the rows of the examples only.
    with_rows: bool = True


@dataclass(frozen=True)
class PrepareKeys:
    """Prepare these keys; `hashes`: what the report says that the nodes had (nothing: there is no report)."""

    keys: tuple[KeyValues, ...]
    hashes: tuple[tuple[Hash, ...], ...] = ()


@dataclass
class Writes:
    """What one node gets: for each key its row before (guard and line, None: none) and its row after.

    `made` is the guard of the row after: b"" where there is none, None where it is not known before it is written.
    """

    acts: list[Act] = field(default_factory=list)
    keys: list[KeyValues] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    guards: list[bytes | None] = field(default_factory=list)
    before: list[bytes | None] = field(default_factory=list)
    after: list[bytes | None] = field(default_factory=list)
    made: list[bytes | None] = field(default_factory=list)

    def add(
        self, act: Act, key: KeyValues, mine: bytes, old: Line | None, new: bytes | None, made: bytes | None
    ) -> None:
        """One more key."""
        self.acts.append(act)
        self.keys.append(key)
        self.ids.append(mine)
        self.after.append(new)
        self.made.append(made)
        if old is None:
            self.guards.append(None)
            self.before.append(None)
        else:
            self.guards.append(old.guard)
            self.before.append(old.fields)


@dataclass(frozen=True)
class Left:
    """A key that is left as it is on some nodes, and why."""

    key: KeyValues
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Prepared:
    """What a task has decided."""

    keys: int
    agree: int
    writes: Mapping[str, Writes]
    left: Sequence[Left]


def prepare(repair: RepairJob, task: PrepareKeys, room: Room) -> Iterator[Prepared | More]:
    """Portion by portion; what does not fit the room is handed back."""
    application = repair.job.application
    at, size = 0, _batches.get(application, _FIRST_BATCH)
    while at < len(task.keys):
        if room.is_used_up:
            yield More((PrepareKeys(task.keys[at:], task.hashes[at:]),))
            return
        some = PrepareKeys(task.keys[at : at + size], task.hashes[at : at + size])
        try:
            batch = _read(repair, some.keys, most_bytes=_MOST_BYTES if size > 1 else 0)
        except TooMuch:
            size = max(1, size // 8)
            continue
        found = _decide(repair, batch, some)
        taken = max(sum(len(line.fields) for line in side.values()) for side in batch.sides)
        room.take(sum(_size(writes) for writes in found.writes.values()))
        yield found
        at += len(some.keys)
        if len(some.keys) == size:
            size = max(1, min(_LARGEST_BATCH, size * 4, int(size * _BATCH_BYTES / max(taken, 1))))
            _batches.clear()
            _batches[application] = size


def _size(writes: Writes) -> int:
    lines = (line for lines in (writes.before, writes.after) for line in lines if line is not None)
    return 100 * len(writes.keys) + sum(map(len, lines))


def _read(repair: RepairJob, keys: Sequence[KeyValues], *, most_bytes: int) -> Batch:
    job, nodes = repair.job, tuple(node.name for node in repair.job.nodes)

    def ask(reader: Reader) -> dict[bytes, Line]:
        return lines_by_key(reader, repair.layout, keys, timeout=job.timeout * 4, most_bytes=most_bytes)

    sides = job.read(nodes, ask)
    ids = [key_id(key) for key in keys]
    return Batch(repair.layout, nodes, keys, ids, [sides[node] for node in nodes], repair.layout.is_plain)


def _decide(repair: RepairJob, batch: Batch, task: PrepareKeys) -> Prepared:
    writes = {node: Writes() for node in batch.nodes}
    left: list[Left] = []
    said = _Said(repair, batch, task)
    mode = repair.mode.known(repair.job, batch) if isinstance(repair.mode, Conditions) else repair.mode
    agree = 0
    for at, mine in enumerate(batch.ids):
        lines = [side.get(mine) for side in batch.sides]
        if len({None if line is None else line.hash for line in lines}) == 1:
            agree += 1
        else:
            _settle(batch, at, lines, mode.decide(batch, at), said, writes, left)
    if not repair.with_rows:
        for each in writes.values():
            _keep_examples(each)
    return Prepared(len(batch.keys), agree, {node: each for node, each in writes.items() if each.keys}, left)


def first_of_each(acts: Sequence[Act]) -> list[int]:
    """The places of the first few of each act."""
    found: list[int] = []
    for act in ACTS:
        at = -1
        for _ in range(min(EXAMPLES, acts.count(act))):
            at = acts.index(act, at + 1)
            found.append(at)
    return found


def _keep_examples(writes: Writes) -> None:
    kept = [(at, writes.before[at], writes.after[at]) for at in first_of_each(writes.acts)]
    writes.before, writes.after = [None] * len(writes.acts), [None] * len(writes.acts)
    for at, before, after in kept:
        writes.before[at], writes.after[at] = before, after


class _Said:
    """What the report says of the rows, and so whether a row has changed since."""

    def __init__(self, repair: RepairJob, batch: Batch, task: PrepareKeys) -> None:
        self._hashes = task.hashes if repair.skip_stale else ()
        self._inside: Mapping[str, set[bytes]] | None = None
        spec = repair.layout.spec
        if spec.filter and self._hashes:
            # To the report, a row outside of the filter was no row.
            timeout = repair.job.timeout * 4
            self._inside = repair.job.read(
                batch.nodes, lambda reader: inside_filter(reader, spec, batch.keys, timeout=timeout)
            )

    def is_stale(self, batch: Batch, at: int, node: int, line: Line | None) -> str:
        """Why a row must not be written over, or nothing."""
        if not self._hashes:
            return ""
        said = self._hashes[at][node]
        if said == UNKNOWN:
            return UNSAID
        seen = line is not None and (self._inside is None or batch.ids[at] in self._inside[batch.nodes[node]])
        now = line.hash.decode() if line is not None and seen else None
        return "" if now == said else STALE


def _settle(
    batch: Batch,
    at: int,
    lines: Sequence[Line | None],
    decision: Decision,
    said: _Said,
    writes: Mapping[str, Writes],
    left: list[Left],
) -> None:
    """From the decision to what each node gets."""
    key = batch.keys[at]
    if isinstance(decision, Leave):
        left.append(Left(key, batch.nodes, decision.reason))
        return
    for node, old in enumerate(lines):
        act, new, made = _wanted(batch, node, lines, decision)
        if act is None:
            continue
        reason = ""
        if isinstance(decision, Like) and act not in decision.allow:
            reason = decision.why or f"no row is {_DONE[act]} in this mode"
        reason = reason or said.is_stale(batch, at, node, old)
        if reason:
            left.append(Left(key, (batch.nodes[node],), reason))
        else:
            writes[batch.nodes[node]].add(act, key, batch.ids[at], old, new, made)


_NOTHING = None, None, None


def _wanted(
    batch: Batch, node: int, lines: Sequence[Line | None], decision: Like | Gone | Made
) -> tuple[Act | None, bytes | None, bytes | None]:
    """What is to be done on a node, the line that it gets, and that line's guard, if it is known."""
    old = lines[node]
    if isinstance(decision, Gone):
        return _NOTHING if old is None else ("delete", None, b"")
    if isinstance(decision, Made):
        if node not in decision.rows:
            return _NOTHING
        new = _with_fields(batch.layout, old, decision.rows[node])
        return _NOTHING if old is not None and new == old.fields else ("update" if old else "insert", new, None)
    theirs = lines[decision.source]
    if theirs is None:
        return _NOTHING if old is None else ("delete", None, b"")
    if old is not None and old.hash == theirs.hash:
        return _NOTHING
    if batch.is_plain:
        # The same columns on all nodes, and hashes that all nodes make alike: the row will have the hash it has there.
        return ("update" if old else "insert"), theirs.fields, theirs.guard
    fields = split(theirs.fields)[: len(batch.layout.carried)]
    return ("update" if old else "insert"), _with_fields(batch.layout, old, fields), None


def _with_fields(layout: Layout, old: Line | None, fields: Sequence[bytes]) -> bytes:
    """A row with these fields; of a row that is there, what is not compared stays as it is."""
    if old is None:
        return join(fields)
    kept = split(old.fields)
    for place in layout.taken:
        kept[place] = fields[place]
    return join(kept)


def without_rows(writes: Writes) -> Writes:
    """What the spool keeps: the rows before are in the undo file."""
    return replace(writes, before=[])
