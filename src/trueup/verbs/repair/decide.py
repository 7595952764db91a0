"""One task of a repair: read some keys on all nodes, decide, and return what each node gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from trueup.db.reader import Reader, ResultTooLarge
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, More, Room, Tasks
from trueup.rows.keys import KeyValues
from trueup.rows.write.copy_text import key_ids
from trueup.task.job import Job
from trueup.task.past import Hash
from trueup.task.steering import Steering
from trueup.verbs.repair.conditions import Conditions
from trueup.verbs.repair.decisions import Decisions
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line, inside_filter, lines_by_key
from trueup.verbs.repair.modes import ALL, Batch, Like, Mode, SourceOfTruth
from trueup.verbs.repair.settle import Settling
from trueup.verbs.repair.writes import Decided, Writes

KEYS_PER_TASK = 5000
# The size of a batch is adjusted to this many bytes per node, and no batch holds more than MAX_BYTES unless a
# single row does.
BATCH_BYTES = 2_000_000
MAX_BYTES = 32_000_000
_FIRST_BATCH, _LARGEST_BATCH = 64, 5000

# The batch size that fits the rows of the current run, by application name.
batch_sizes: dict[str, int] = {}


@dataclass(frozen=True)
class RepairJob:
    """What all tasks of a repair share."""

    job: Job
    layout: Layout
    mode: Mode
    skip_stale: bool = True
    # A dry run needs only the rows of the examples.
    with_rows: bool = True


@dataclass(frozen=True)
class DecideKeys:
    """Keys to decide, and the hashes that the report has for them (empty: there is no report)."""

    keys: tuple[KeyValues, ...]
    hashes: Sequence[tuple[Hash, ...]] = ()

    def part(self, start: int, end: int | None = None) -> DecideKeys:
        """Return some of the keys."""
        return DecideKeys(self.keys[start:end], self.hashes[start:end])


def read_and_decide(
    engine: Engine, repair: RepairJob, keys: DecideKeys, decisions: Decisions, progress: Progress, steering: Steering
) -> None:
    """Run the tasks and collect what they decide; raise the error of the first task that fails."""
    parts = (keys.part(start, start + KEYS_PER_TASK) for start in range(0, len(keys.keys), KEYS_PER_TASK))
    tasks: Tasks[DecideKeys] = Tasks(parts, steering.gate, expected=-(-len(keys.keys) // KEYS_PER_TASK))
    progress.stage("reading", len(keys.keys))
    for answer in engine.run(partial(decide, repair), tasks):
        if isinstance(answer, Failure):
            raise answer.error
        if isinstance(answer, More):
            tasks.add(answer.tasks)
        else:
            decisions.add(answer)
            progress.advance(answer.keys, rows=answer.keys)


def decide(repair: RepairJob, task: DecideKeys, room: Room) -> Iterator[Decided | More]:
    """Decide batch by batch; keys that do not fit the room are returned as another task."""
    application = repair.job.application
    start, size = 0, batch_sizes.get(application, _FIRST_BATCH)
    while start < len(task.keys):
        if room.is_used_up:
            yield More((task.part(start),))
            return
        part = task.part(start, start + size)
        try:
            batch = _read(repair, part.keys, most_bytes=MAX_BYTES if size > 1 else 0)
        except ResultTooLarge:
            size = max(1, size // 8)
            continue
        decided = _decide(repair, batch, part.hashes)
        bytes_read = max(sum([len(line[2]) for line in side.values()]) for side in batch.sides)
        room.take(sum(_size(writes) for writes in decided.writes.values()))
        yield decided
        start += len(part.keys)
        if len(part.keys) == size:
            size = max(1, min(_LARGEST_BATCH, size * 4, int(size * BATCH_BYTES / max(bytes_read, 1))))
            batch_sizes.clear()
            batch_sizes[application] = size


def _size(writes: Writes) -> int:
    lines = [len(line) for lines in (writes.before, writes.after) for line in lines if line is not None]
    return 100 * len(writes.keys) + sum(lines)


def _read(repair: RepairJob, keys: Sequence[KeyValues], *, most_bytes: int) -> Batch:
    job, layout = repair.job, repair.layout
    nodes = tuple(node.name for node in job.nodes)

    def read(reader: Reader) -> dict[bytes, Line]:
        return lines_by_key(reader, layout, keys, timeout=job.timeout * 4, most_bytes=most_bytes)

    sides = job.read(nodes, read)
    return Batch(layout, nodes, keys, key_ids(keys), [sides[node] for node in nodes], layout.is_plain)


def _decide(repair: RepairJob, batch: Batch, reported: Sequence[Sequence[Hash]]) -> Decided:
    mode = repair.mode.known(repair.job, batch) if isinstance(repair.mode, Conditions) else repair.mode
    settling = _settling(repair, batch, reported)
    agree, ids = 0, batch.ids
    if isinstance(mode, SourceOfTruth) and mode.allow == ALL and settling.may_mirror:
        agree, ids = settling.mirror(mode.source), ()
    for place, name in enumerate(ids):
        lines = [side.get(name) for side in batch.sides]
        hashes = [None if line is None else line.hash for line in lines]
        if hashes.count(hashes[0]) == len(hashes):
            agree += 1
            continue
        decision = mode.decide(batch, place)
        if isinstance(decision, Like):
            settling.like(place, lines, hashes, decision)
        else:
            settling.other(place, lines, decision)
    writes = {node: Writes.of(entries) for node, entries in zip(batch.nodes, settling.entries, strict=True) if entries}
    if not repair.with_rows:
        for node_writes in writes.values():
            node_writes.keep_examples()
    return Decided(len(batch.keys), agree, writes, settling.left)


def _settling(repair: RepairJob, batch: Batch, reported: Sequence[Sequence[Hash]]) -> Settling:
    job, spec = repair.job, repair.layout.spec
    if not repair.skip_stale or not reported:
        return Settling(batch, ())
    if not spec.filter:
        return Settling(batch, reported)
    return Settling(
        batch,
        reported,
        job.read(batch.nodes, lambda reader: inside_filter(reader, spec, batch.keys, timeout=job.timeout * 4)),
    )
