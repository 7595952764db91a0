"""Suspects are read again, as they are now: what agrees in the meantime was in flight, the rest is confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.rows.align import Difference, align, align_copies
from trueup.rows.fetch import rows_by_key
from trueup.rows.keys import KeyValues
from trueup.task.job import Job
from trueup.verbs.diff.collect import Collected
from trueup.verbs.diff.compare import differences_of
from trueup.verbs.diff.keyless import copies_where, refill, with_hash
from trueup.verbs.diff.spool import Place, Spool
from trueup.verbs.diff.work import by_key, settled_pairs

_KEYS_A_TASK = 500
# Each look at a keyless table is a scan of it.
_HASHES_A_TASK = 50_000


@dataclass(frozen=True)
class Recheck:
    """Suspects: where each stands in the spool, its key, and the hash that each node had."""

    places: tuple[Place, ...]
    keys: tuple[KeyValues, ...]
    hashes: tuple[tuple[tuple[str, int | None], ...], ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Rechecked:
    """What became of suspects, by place: True the same as before, None gone, or the difference as it is now."""

    outcomes: dict[Place, Difference | bool | None]


def recheck(
    engine: Engine,
    job: Job,
    state: Collected,
    new_spool: Callable[[], Spool],
    *,
    rounds: int,
    wait: float,
    seen: float,
    progress: Progress,
) -> None:
    """Look at the suspects again, some rounds, some seconds apart; those that stay are confirmed.

    `seen` is the moment, on the monotonic clock, of which the first look speaks.
    """
    for number in range(1, rounds + 1):
        if not state.suspects.count or state.stopped:
            break
        progress.stage(f"re-check {number}/{rounds}", state.suspects.count)
        wait_since(seen, wait, state.sleep)
        before = state.look_again(new_spool())
        try:
            _round(engine, job, before, state, progress)
        finally:
            before.close()
        seen = time.monotonic()


def wait_since(seen: float, seconds: float, sleep: Callable[[float], object] | None = None) -> None:
    """Wait until so many seconds have gone by since that moment; a long look has waited already."""
    (sleep or time.sleep)(max(0.0, seen + seconds - time.monotonic()))


def _round(engine: Engine, job: Job, before: Spool, state: Collected, progress: Progress) -> None:
    keyless = job.spec.is_keyless
    again = recheck_hashes if keyless else recheck_keys
    size = _HASHES_A_TASK if keyless else _KEYS_A_TASK
    tasks = Tasks(_tasks(before, size), state.gate)
    for answer in engine.run(partial(again, job), tasks):
        if isinstance(answer, Failure):
            # Not seen again, so not gone either: it stays a difference, and the run is incomplete.
            state.failures.append(answer)
            state.keep([known for _, known in before.at(answer.task.places)])
            progress.advance(len(answer.task.places))
            continue
        stayed = []
        for place, known in before.at(answer.outcomes):
            outcome = answer.outcomes[place]
            now = known if outcome is True else outcome
            assert now is None or isinstance(now, Difference)
            if keyless and now is not None:
                now = refill(known, now)
            state.in_flight.update(settled_pairs(known, now))
            if now is not None:
                stayed.append(now)
        state.keep(stayed)
        progress.advance(len(answer.outcomes))


def _tasks(spool: Spool, size: int) -> Iterator[Recheck]:
    places = spool.with_places()
    while some := list(islice(places, size)):
        # Keys of one task were asked of the same nodes.
        for nodes in {difference.nodes for _, difference in some}:
            mine = [(place, difference) for place, difference in some if difference.nodes == nodes]
            yield Recheck(
                tuple(place for place, _ in mine),
                tuple(difference.key for _, difference in mine),
                tuple(_hashes(difference) for _, difference in mine),
                nodes,
            )


def recheck_keys(job: Job, task: Recheck, room: Room) -> Iterator[Rechecked]:
    """Hashes of these keys as they are now; whole rows only where something moved."""
    sides = job.read(
        task.nodes,
        lambda reader: rows_by_key(reader, job.spec, task.keys, values=False, timeout=job.timeout * 4),
        fresh=True,
    )
    now = by_key(list(align(task.keys, sides)))
    moved = {
        key
        for key, hashes in zip(task.keys, task.hashes, strict=True)
        if key in now and dict(_hashes(now[key])) != dict(hashes)
    }
    whole = by_key(differences_of(job, sorted(moved), task.nodes, fresh=True)) if moved else {}
    outcomes: dict[Place, Difference | bool | None] = {}
    for place, key in zip(task.places, task.keys, strict=True):
        outcomes[place] = None if key not in now else whole.get(key) if key in moved else True
    yield Rechecked(outcomes)


def recheck_hashes(job: Job, task: Recheck, room: Room) -> Iterator[Rechecked]:
    """The copies of these rows of a keyless table, counted again."""
    marks = [int(key[0]) for key in task.keys]
    copies = job.read(task.nodes, lambda reader: copies_where(reader, job.spec, with_hash(marks)), fresh=True)
    now = by_key(list(align_copies(copies, marks, {})))
    yield Rechecked({place: now.get(key) for place, key in zip(task.places, task.keys, strict=True)})


def _hashes(difference: Difference) -> tuple[tuple[str, int | None], ...]:
    return tuple((node, group.hash) for group in difference.groups for node in group.nodes)
