"""Re-check suspects outside of the snapshot: those that agree now were in flight.

Of the others, those whose rows are as in the look before are confirmed. The rest is hot: a row that changes all the
time may differ at every look although each of its changes arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from trueup.engine.work import Failure, Room, Tasks
from trueup.rows.align import Difference, align, align_copies
from trueup.rows.fetch import Row, rows_by_key
from trueup.rows.keys import KeyValues
from trueup.rows.spec import new_seed
from trueup.task.compare.copies import proven_copies, with_values_of
from trueup.task.compare.keys import differences_in
from trueup.task.compare.model import by_key, settled_pairs
from trueup.task.compare.spool import Place, Spool
from trueup.task.compare.state import Comparison, new_spool
from trueup.task.job import Job

_KEYS_PER_TASK = 500
# For a keyless table each task is a scan of the table.
_HASHES_PER_TASK = 50_000


@dataclass(frozen=True)
class Recheck:
    """Task: suspects, each with its place in the spool, its key, and the hash per node."""

    places: tuple[Place, ...]
    keys: tuple[KeyValues, ...]
    hashes: tuple[tuple[tuple[str, int | None], ...], ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Rechecked:
    """Answer: per place, True for an unchanged difference, None for none, or the difference as it is now."""

    outcomes: dict[Place, Difference | bool | None]


def recheck(run: Comparison, seen: float) -> None:
    """Compare the suspects again, in the configured number of rounds; those that differ in the same way are confirmed.

    `seen` is the time of the first comparison, on the monotonic clock.
    """
    state, settings = run.state, run.request.settings
    for number in range(1, settings.recheck + 1):
        if not state.suspects.count or state.stopped:
            break
        run.progress.stage(f"re-check {number}/{settings.recheck}", state.suspects.count)
        wait_since(seen, settings.recheck_wait, state.sleep)
        before = state.take_suspects(new_spool(run.request))
        try:
            _round(run, before)
        finally:
            before.close()
        seen = time.monotonic()


def wait_since(seen: float, seconds: float, sleep: Callable[[float], object] | None = None) -> None:
    """Wait until `seconds` have passed since `seen`."""
    (sleep or time.sleep)(max(0.0, seen + seconds - time.monotonic()))


def _round(run: Comparison, before: Spool) -> None:
    state, progress = run.state, run.progress
    keyless = run.job.spec.is_keyless
    work = recheck_hashes if keyless else recheck_keys
    size = _HASHES_PER_TASK if keyless else _KEYS_PER_TASK
    tasks = Tasks(_tasks(before, size), state.gate, expected=-(-before.count // size))
    for answer in run.engine.run(partial(work, run.job), tasks):
        if isinstance(answer, Failure):
            # Not compared again: it stays a difference, and the run is incomplete.
            state.failures.append(answer)
            state.keep([known for _, known in before.at(answer.task.places)])
            progress.advance(len(answer.task.places))
            continue
        confirmed = []
        for place, known in before.at(answer.outcomes):
            outcome = answer.outcomes[place]
            now = known if outcome is True else outcome
            assert now is None or isinstance(now, Difference)
            if keyless and now is not None:
                now = with_values_of(known, now)
            state.in_flight.update(settled_pairs(known, now))
            if now is not None:
                confirmed.append(now.since(known))
        state.keep(confirmed)
        progress.advance(len(answer.outcomes))


def _tasks(spool: Spool, size: int) -> Iterator[Recheck]:
    suspects = spool.with_places()
    while batch := list(islice(suspects, size)):
        # The keys of one task are read on the same nodes.
        for nodes in {difference.nodes for _, difference in batch}:
            same_nodes = [(place, difference) for place, difference in batch if difference.nodes == nodes]
            yield Recheck(
                tuple(place for place, _ in same_nodes),
                tuple(difference.key for _, difference in same_nodes),
                tuple(_hashes(difference) for _, difference in same_nodes),
                nodes,
            )


def recheck_keys(job: Job, task: Recheck, room: Room) -> Iterator[Rechecked]:
    """Hash the rows of these keys again; read whole rows only where a hash has changed."""
    sides = _read(job, task, task.keys, values=False)
    now = by_key(list(align(task.keys, sides)))
    changed = {
        key
        for key, hashes in zip(task.keys, task.hashes, strict=True)
        if key in now and dict(_hashes(now[key])) != dict(hashes)
    }
    again = _read(job, task, sorted(changed), values=True) if changed else {}
    rows = by_key(differences_in(job, sorted(changed), again))
    outcomes: dict[Place, Difference | bool | None] = {}
    for place, key in zip(task.places, task.keys, strict=True):
        if key in now:
            outcomes[place] = rows.get(key) or _unless_equal(key, again) if key in changed else True
        else:
            outcomes[place] = _unless_equal(key, sides)
    yield Rechecked(outcomes)


def _read(job: Job, task: Recheck, keys: Sequence[KeyValues], *, values: bool) -> dict[str, dict[KeyValues, Row]]:
    """Read rows as they are now, also with a hash whose seed was not known when they were written."""
    proof = new_seed()
    return job.read(
        task.nodes,
        lambda reader: rows_by_key(reader, job.spec, keys, values=values, timeout=job.timeout * 4, proof=proof),
        fresh=True,
    )


def _unless_equal(key: KeyValues, sides: Mapping[str, Mapping[KeyValues, Row]]) -> bool | None:
    """Return None for rows with equal hashes that are equal; True if they were made to have the same hash."""
    rows = [side.get(key) for side in sides.values()]
    return None if len({row and row.proof for row in rows}) == 1 else True


def recheck_hashes(job: Job, task: Recheck, room: Room) -> Iterator[Rechecked]:
    """Count the copies of these rows of a keyless table again."""
    marks = [int(key[0]) for key in task.keys]
    copies, made = proven_copies(job, marks, task.nodes, fresh=True)
    now = by_key(list(align_copies(copies, marks, {})))
    outcomes: dict[Place, Difference | bool | None] = {}
    for place, key in zip(task.places, task.keys, strict=True):
        outcomes[place] = True if int(key[0]) in made else now.get(key)
    yield Rechecked(outcomes)


def _hashes(difference: Difference) -> tuple[tuple[str, int | None], ...]:
    return tuple((node, group.hash) for group in difference.groups for node in group.nodes)
