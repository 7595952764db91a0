"""Hash and compare all rows of a table: by blocks of the key, by pages, or as a multiset."""

from __future__ import annotations

from collections import Counter

from trueup.db.node import error_from_server
from trueup.rows.proven import ProvenTable
from trueup.task.compare.model import Ranges
from trueup.task.compare.state import Comparison
from trueup.task.steering import is_gentle
from trueup.verbs.diff.blocks import compare_blocks
from trueup.verbs.diff.count import all_counted, joined
from trueup.verbs.diff.journal import Before
from trueup.verbs.diff.keyless import compare_multisets
from trueup.verbs.diff.physical import compare_pages, is_scattered
from trueup.verbs.diff.resume import restore
from trueup.verbs.diff.since import compare_touched


def compare_table(run: Comparison, ranges: Ranges, before: Before | None) -> None:
    """Hash the table on all nodes and find the rows that differ; blocks that `before` has finished are skipped."""
    if run.job.spec.is_keyless:
        if run.request.prover:
            run.state.proven = ProvenTable("", reason="the table has no key")
        compare_multisets(run, max(ranges.estimates.values()))
        return
    done = restore(before, run.state) if before else frozenset()
    run.state.earlier = Counter(run.state.rows)
    settings = run.request.settings
    if run.request.prover and not before and compare_touched(run, run.request.prover):
        return
    by_pages = not done and settings.snapshot and not is_gentle(settings)
    if by_pages and is_scattered(run.controls, run.job.spec):
        compare_pages(run, ranges)
        return
    blocks = {number: block for number, block in enumerate(ranges.blocks) if number not in done}
    with all_counted(run, joined(ranges.blocks, done)):
        compare_blocks(run, blocks, ranges.inside)


def end_snapshots(run: Comparison) -> None:
    """End the snapshots: a re-check reads current rows, and must not delay sessions that alter the table."""
    for control in run.controls:
        try:
            control.end()
        except Exception as error:
            run.state.stopped = run.state.stopped or error_from_server(error, control.node)
