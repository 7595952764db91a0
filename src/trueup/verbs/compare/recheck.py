"""Re-check the differences: read their rows again on all nodes, outside of the snapshots."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack

from trueup.rows.align import Difference
from trueup.rows.keys import KeyValues
from trueup.task.compare.model import settled_pairs
from trueup.task.compare.recheck import wait_since
from trueup.task.compare.spool import Place, Spool
from trueup.task.compare.state import new_spool
from trueup.verbs.compare.request import CompareRun
from trueup.verbs.compare.rows import Found, compared_keys


def recheck(run: CompareRun, found: Found, seen: float) -> None:
    """Compare the suspects again, in the configured number of rounds; `seen` is the time of the first comparison."""
    settings, state = run.request.settings, run.state
    with ExitStack() as stack:
        in_flight = _in_flight(run)
        for number in range(1, settings.recheck + 1):
            if not state.suspects.count or state.stopped:
                break
            run.progress.stage(f"re-check {number}/{settings.recheck}", state.suspects.count)
            wait_since(seen, settings.recheck_wait, run.wait)
            in_flight = _in_flight(run)
            found = stack.enter_context(compared_keys(run, found.keys()))
            before = state.take_suspects(new_spool(run.request))
            try:
                _settle(run, before, found)
            finally:
                before.close()
            seen = time.monotonic()
        _leave_out(run, in_flight | _in_flight(run))


def _in_flight(run: CompareRun) -> set[KeyValues]:
    """Return the keys of differences whose rows are on their way now."""
    if run.in_flight is None or not run.state.suspects.count:
        return set()
    return set(run.in_flight([difference.key for difference in run.state.suspects]))


def _leave_out(run: CompareRun, in_flight: set[KeyValues]) -> None:
    """Count differences whose rows were on their way before or after the last look as in flight."""
    if not in_flight:
        return
    before = run.state.take_suspects(new_spool(run.request))
    try:
        for known in before:
            if known.key in in_flight:
                run.state.in_flight.update(settled_pairs(known, None))
            else:
                run.state.keep([known])
    finally:
        before.close()


def _settle(run: CompareRun, before: Spool, found: Found) -> None:
    """Keep the differences that remain; count those that are gone as in flight."""
    now = new_spool(run.request)
    try:
        for batch, packed in found.batches():
            now.add(batch, packed)
        # A key that is not unique has several.
        places: defaultdict[KeyValues, list[Place]] = defaultdict(list)
        for place, difference in now.with_places():
            places[difference.key].append(place)
        state = run.state
        for _, known in before.with_places():
            same = places.get(known.key)
            current = _at(now, same.pop(0)) if same else None
            state.in_flight.update(settled_pairs(known, current))
            if current is not None:
                state.keep([current.since(known)])
            run.progress.advance()
    finally:
        now.close()


def _at(spool: Spool, place: Place) -> Difference:
    return next(difference for _, difference in spool.at([place]))
