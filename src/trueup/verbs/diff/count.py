"""Count the rows of each node in its snapshot, beside the hash of its blocks, which must have every one of them.

Blocks are ranges of a key, and what is known of a key comes from the catalog: a row may have NULL in it, or be outside
of the bounds of its partition. A count has no condition on the key. Without a snapshot it would be of another moment
than the blocks; then only the rows that have NULL in the key are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import groupby

from psycopg import sql

from trueup.db.connection import one_row
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.rows.keys import Block, has_null, in_block, source, where
from trueup.rows.pages import on_pages, page_count
from trueup.task.compare.state import Comparison
from trueup.task.steering import is_gentle

# Pages per statement of a gentle run.
_PAGES = 1024
_WAIT_SECONDS = 0.05


@contextmanager
def all_counted(run: Comparison, earlier: Sequence[Block] = ()) -> Iterator[None]:
    """Count the rows while the blocks are hashed, without those of blocks that were hashed in an earlier snapshot.

    A gentle run reads one thing at a time: it counts when the blocks are hashed.
    """
    state, settings = run.state, run.request.settings
    if is_gentle(settings) or not settings.snapshot:
        yield
        for control in run.controls:
            if not state.failures and not state.stopped:
                _count(run, control, earlier)
        return
    with ThreadPoolExecutor(len(run.controls), thread_name_prefix="trueup-count") as threads:
        counts = [threads.submit(_count, run, control, earlier) for control in run.controls]
        try:
            yield
            while wait(counts, _WAIT_SECONDS).not_done and not state.failures and not state.stopped:
                state.sleep(0)
        finally:
            # The run has ended: a count that is still running does not matter any more.
            while wait(counts, 0).not_done:
                for control in run.controls:
                    control.cancel()
                wait(counts, _WAIT_SECONDS)


def joined(blocks: Sequence[Block], numbers: Collection[int]) -> list[Block]:
    """Return the blocks with these numbers; adjacent ones are one block."""
    groups = groupby(range(len(blocks)), lambda number: number in numbers)
    runs = [list(run) for is_listed, run in groups if is_listed]
    return [Block(blocks[run[0]].start, blocks[run[-1]].end) for run in runs]


def _count(run: Comparison, control: Control, earlier: Sequence[Block]) -> None:
    """Count the rows of a node; an error ends the run."""
    state, spec = run.state, run.spec
    try:
        if not run.request.settings.snapshot:
            state.without_key[control.node.name] = _ask(run, control, [has_null(spec.key_names)], ())
            return
        # It runs beside the statements of the tasks, which use one core each.
        control.connection.execute("SELECT pg_catalog.set_config('max_parallel_workers_per_gather', '0', true)")
        state.counted[control.node.name] = sum(_ask(run, control, part, earlier) for part in _parts(run, control))
    except Exception as error:
        state.stopped = state.stopped or error_from_server(error, control.node)


def _parts(run: Comparison, control: Control) -> Iterator[list[sql.Composable]]:
    """Yield the conditions of each statement: none, or pages if the run is gentle."""
    if not is_gentle(run.request.settings):
        yield []
        return
    edges = list(range(0, page_count(control.connection, run.spec), _PAGES)) or [0]
    for first, end in zip(edges, [*edges[1:], None], strict=True):
        if run.state.gate:
            run.state.gate(1)
        yield on_pages(first, end)


def _ask(run: Comparison, control: Control, conditions: Sequence[sql.Composable], earlier: Sequence[Block]) -> int:
    """Return the number of rows that meet the conditions and are in none of the earlier blocks."""
    inside = [sql.SQL(" AND ").join([sql.SQL("true"), *in_block(run.spec, block)]) for block in earlier]
    # A row without a key is in no block: the condition is not true, but NULL.
    left = sql.SQL(" FILTER (WHERE ({}) IS NOT TRUE)").format(sql.SQL(" OR ").join(inside)) if inside else sql.SQL("")
    query = sql.SQL("SELECT count(*){} FROM {}{}").format(left, source(run.spec), where(run.spec, *conditions))
    return int(one_row(control.connection.execute(query, binary=True))[0])
