"""One task of a repair: read some keys on all nodes, decide, and say for every node which rows go and which come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trueup.db.reader import Reader, TooMuch
from trueup.engine.work import More, Room
from trueup.rows.keys import KeyValues
from trueup.rows.write.copy_text import join, key_ids, split
from trueup.rows.write.guarded import Expected
from trueup.task.job import Job
from trueup.task.past import UNKNOWN, Hash
from trueup.verbs.repair.conditions import Conditions
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line, inside_filter, lines_by_key
from trueup.verbs.repair.modes import ACTS, ALL, Act, Batch, Gone, Leave, Like, Made, Mode, SourceOfTruth

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

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Writes:
        """Many keys at once."""
        acts, keys, ids, guards, before, after, made = map(list, zip(*entries, strict=True))
        return cls(acts, keys, ids, guards, before, after, made)

    def expected(self, act: Act | None = None) -> Expected:
        """Return the rows before, of one act or of all."""
        if act is None:
            return Expected(self.ids, self.keys, self.guards)
        places = [place for place, each in enumerate(self.acts) if each == act]
        return Expected(
            [self.ids[place] for place in places],
            [self.keys[place] for place in places],
            [self.guards[place] for place in places],
        )

    def expected_after(self) -> Expected:
        """Return the rows after; the hashes of all of them must be known."""
        return Expected(self.ids, self.keys, [made or None for made in self.made])


# What Writes has of one key: act, key, id, guard and line before, line and guard after.
Entry = tuple[Act, KeyValues, bytes, "bytes | None", "bytes | None", "bytes | None", "bytes | None"]


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
        taken = max(sum([len(line[2]) for line in side.values()]) for side in batch.sides)
        room.take(sum(_size(writes) for writes in found.writes.values()))
        yield found
        at += len(some.keys)
        if len(some.keys) == size:
            size = max(1, min(_LARGEST_BATCH, size * 4, int(size * _BATCH_BYTES / max(taken, 1))))
            _batches.clear()
            _batches[application] = size


def _size(writes: Writes) -> int:
    lines = [len(line) for lines in (writes.before, writes.after) for line in lines if line is not None]
    return 100 * len(writes.keys) + sum(lines)


def _read(repair: RepairJob, keys: Sequence[KeyValues], *, most_bytes: int) -> Batch:
    job, nodes = repair.job, tuple(node.name for node in repair.job.nodes)

    def ask(reader: Reader) -> dict[bytes, Line]:
        return lines_by_key(reader, repair.layout, keys, timeout=job.timeout * 4, most_bytes=most_bytes)

    sides = job.read(nodes, ask)
    return Batch(repair.layout, nodes, keys, key_ids(keys), [sides[node] for node in nodes], repair.layout.is_plain)


def _decide(repair: RepairJob, batch: Batch, task: PrepareKeys) -> Prepared:
    mode = repair.mode.known(repair.job, batch) if isinstance(repair.mode, Conditions) else repair.mode
    settling = _Settling(repair, batch, task)
    sides, agree = batch.sides, 0
    ids = batch.ids
    if isinstance(mode, SourceOfTruth) and mode.allow == ALL and settling.may_mirror:
        agree, ids = settling.mirror(mode.source), ()
    for at, mine in enumerate(ids):
        lines = [side.get(mine) for side in sides]
        marks = [None if line is None else line.hash for line in lines]
        if marks.count(marks[0]) == len(marks):
            agree += 1
            continue
        decision = mode.decide(batch, at)
        if isinstance(decision, Like):
            settling.like(at, lines, marks, decision)
        else:
            settling.other(at, lines, decision)
    writes = {node: Writes.of(entries) for node, entries in zip(batch.nodes, settling.entries, strict=True) if entries}
    if not repair.with_rows:
        for each in writes.values():
            _keep_examples(each)
    return Prepared(len(batch.keys), agree, writes, settling.left)


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


class _Settling:
    """From the decisions to what each node gets, and what is left."""

    def __init__(self, repair: RepairJob, batch: Batch, task: PrepareKeys) -> None:
        self.entries: list[list[Entry]] = [[] for _ in batch.nodes]
        self.left: list[Left] = []
        self._batch = batch
        self._said = task.hashes if repair.skip_stale else ()
        self._inside: Mapping[str, set[bytes]] = {}
        spec = repair.layout.spec
        self._filtered = bool(spec.filter and self._said)
        if self._filtered:
            # To the report, a row outside of the filter was no row.
            timeout = repair.job.timeout * 4
            self._inside = repair.job.read(
                batch.nodes, lambda reader: inside_filter(reader, spec, batch.keys, timeout=timeout)
            )

    @property
    def may_mirror(self) -> bool:
        """Whether there are two nodes with the same columns, and what the report says needs no second look."""
        return len(self._batch.nodes) == 2 and self._batch.is_plain and not self._filtered

    def mirror(self, source: int) -> int:
        """One of two nodes becomes like the other in all rows: what most repairs are. Gives how many keys agree."""
        batch, said, node = self._batch, self._said, 1 - source
        theirs, mine, entries = batch.sides[source], batch.sides[node], self.entries[node]
        agree = 0
        for at, (key, name) in enumerate(zip(batch.keys, batch.ids, strict=True)):
            new, old = theirs.get(name), mine.get(name)
            entry: Entry
            if old is None:
                if new is None:
                    agree += 1
                    continue
                was, entry = None, ("insert", key, name, None, None, new.fields, new.guard)
            else:
                mark, guard, fields = old
                if new is None:
                    entry = ("delete", key, name, guard, fields, None, b"")
                elif mark == new.hash:
                    agree += 1
                    continue
                else:
                    entry = ("update", key, name, guard, fields, new.fields, new.guard)
                was = mark.decode()
            if said and said[at][node] != was:
                self._leave(at, node, UNSAID if said[at][node] == UNKNOWN else STALE)
            else:
                entries.append(entry)
        return agree

    def like(self, at: int, lines: Sequence[Line | None], marks: Sequence[bytes | None], decision: Like) -> None:
        """All nodes become like one of them."""
        theirs, mark = lines[decision.source], marks[decision.source]
        for node, old in enumerate(lines):
            if marks[node] == mark:
                continue
            act: Act = "insert" if old is None else "delete" if theirs is None else "update"
            if act not in decision.allow:
                self._leave(at, node, decision.why or f"no row is {_DONE[act]} in this mode")
            elif theirs is None:
                self._write(at, node, act, old, None, b"")
            elif self._batch.is_plain:
                # The same columns on all nodes, and hashes that all make alike: it will have the hash it has there.
                self._write(at, node, act, old, theirs.fields, theirs.guard)
            else:
                fields = split(theirs.fields)[: len(self._batch.layout.carried)]
                self._write(at, node, act, old, _with_fields(self._batch.layout, old, fields), None)

    def other(self, at: int, lines: Sequence[Line | None], decision: Gone | Made | Leave) -> None:
        """A row that is made, deleted or left."""
        if isinstance(decision, Leave):
            self.left.append(Left(self._batch.keys[at], self._batch.nodes, decision.reason))
            return
        for node, old in enumerate(lines):
            if isinstance(decision, Gone):
                if old is not None:
                    self._write(at, node, "delete", old, None, b"")
            elif node in decision.rows:
                new = _with_fields(self._batch.layout, old, decision.rows[node])
                if old is None or new != old.fields:
                    self._write(at, node, "update" if old else "insert", old, new, None)

    def _write(self, at: int, node: int, act: Act, old: Line | None, new: bytes | None, made: bytes | None) -> None:
        stale = self._stale(at, node, old) if self._said else ""
        if stale:
            self._leave(at, node, stale)
            return
        guard, before = (None, None) if old is None else (old.guard, old.fields)
        self.entries[node].append((act, self._batch.keys[at], self._batch.ids[at], guard, before, new, made))

    def _leave(self, at: int, node: int, reason: str) -> None:
        self.left.append(Left(self._batch.keys[at], (self._batch.nodes[node],), reason))

    def _stale(self, at: int, node: int, old: Line | None) -> str:
        """Why a row must not be written over, or nothing: the report says what it was."""
        said = self._said[at][node]
        if said == UNKNOWN:
            return UNSAID
        if self._filtered and self._batch.ids[at] not in self._inside[self._batch.nodes[node]]:
            old = None
        return "" if (None if old is None else old.hash.decode()) == said else STALE


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
