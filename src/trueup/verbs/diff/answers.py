"""Handle the answers of tasks: count rows, keep differences, remember failures, finish blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trueup.db.snapshot import Control
from trueup.engine.work import Failure, More, Tasks
from trueup.errors import NodeError, QueryError, TrueupError
from trueup.rows.align import pack
from trueup.rows.digest import EMPTY, Digest
from trueup.task.compare.model import NOWHERE, Found
from trueup.task.compare.state import Comparison, State

ANALYSIS = "mismatch analysis"
# Errors that concern the table and not one block: the other blocks would fail with them too.
_FOR_ALL_BLOCKS = ("42P01", "42703", "42501", "55P03", "3F000", "53100", "53200")


def answers(run: Comparison, work: Callable[..., Any], tasks: Tasks[Any]) -> Iterator[Any]:
    """Yield the answers of tasks. Failures are kept in the state; one that concerns all blocks ends the run."""
    state = run.state
    for answer in run.engine.run(work, tasks):
        if not isinstance(answer, Failure):
            yield answer
            continue
        state.failures.append(answer)
        state.broken.add(getattr(answer.task, "origin", NOWHERE))
        state.stopped = state.stopped or _reason_to_stop(answer.error, run.controls)
        if state.stopped is not None:
            # Without the task that failed, which is listed with its error.
            left = len(tasks.rest()) + tasks.under_way - 1
            state.left_out.update(dict.fromkeys(state.pairs, left))
            return


def _reason_to_stop(error: TrueupError, controls: Sequence[Control]) -> TrueupError | None:
    if isinstance(error, QueryError) and error.sqlstate in _FOR_ALL_BLOCKS:
        return error
    for control in controls:
        if not control.is_alive():
            return NodeError(
                "the connection that holds the snapshot was lost",
                cure="make sure that the node is running, and run the command again",
                node=control.node.name,
            )
    return error if isinstance(error, NodeError) else None


def keep(answer: Any, tasks: Tasks[Any], state: State) -> None:
    """Keep differences, and put the rest of a task into the queue unless all pairs have reached their limit."""
    if isinstance(answer, More):
        if state.open_nodes():
            start(state, answer.origin, len(answer.tasks))
            tasks.add(answer.tasks)
        else:
            state.broken.add(answer.origin)
            state.left_out.update(state.pairs)
    elif isinstance(answer, Found):
        # Packed once, for the journal and for the spool.
        packed = pack(answer.differences)
        if state.journal:
            state.journal.add(answer, packed)
        state.add(answer, packed)


def start(state: State, origin: int, tasks: int = 1) -> None:
    """Count tasks of a block as started."""
    state.under_way[origin] += tasks


def end(state: State, origin: int) -> bool:
    """Count a task of a block as ended; return whether it was the last one."""
    state.under_way[origin] -= 1
    if state.under_way[origin]:
        return False
    del state.under_way[origin]
    if state.journal and origin not in state.broken:
        state.journal.done(origin)
    return True


def until_full(tasks: Iterable[Any], state: State) -> Iterator[Any]:
    """Yield tasks until every pair has reached its limit of differences; count the others as left out."""
    waiting = iter(tasks)
    for task in waiting:
        if not state.open_nodes():
            state.left_out.update(dict.fromkeys(state.pairs, 1 + sum(1 for _ in waiting)))
            return
        yield task


def spend(state: State, rows: int) -> None:
    """Count rows against the limit of rows per second."""
    if state.steering:
        state.steering.spend(rows)


def add_up(sums: dict[int, Digest], more: Mapping[int, Digest]) -> None:
    """Add digests, by number."""
    for number, digest in more.items():
        sums[number] = sums.get(number, EMPTY) + digest


def count_rows(state: State, sums: Mapping[str, Mapping[int, Digest]]) -> None:
    """Set the row counts of the state from the digests per node."""
    for node, digests in sums.items():
        state.rows[node] = sum(digest.count for digest in digests.values())
    state.rows_checked = max(state.rows.values(), default=0)
