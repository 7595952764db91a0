"""Continue an earlier run: check that tables are the same, and restore what was found in finished blocks.

Rows of one table that were read at several moments prove something only if it was the same table all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from trueup.db.node import error_from_server
from trueup.db.server_identity import server_position, table_facts
from trueup.db.snapshot import Control, Position
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed
from trueup.report.model import DiffResult
from trueup.rows.comparable import OnlyByValue
from trueup.rows.spec import TableSpec
from trueup.store import Task
from trueup.task.compare.model import Hashed
from trueup.task.compare.state import Comparison, State
from trueup.task.open import OpenTask
from trueup.verbs.diff.journal import Before

# Compares the table of a task.
Compare: TypeAlias = Callable[[OpenTask], DiffResult]


def or_by_value(compare: Compare, by_value: Compare | None, task: OpenTask) -> DiffResult:
    """Compare a table, or what can be compared only by value, such as a view; that has no journal and starts again."""
    try:
        return compare(task)
    except OnlyByValue:
        if by_value is None:
            raise
        return by_value(task)


class OtherRows(CheckFailed):
    """What an earlier attempt has read is not what the table is now: its finished blocks prove nothing."""


def same_table(before: Before, spec: TableSpec, positions: Sequence[Position], progress: Progress) -> TableSpec:
    """Return the table with the hash seed of the earlier run; raise OtherRows if it is not the same table."""
    _check_rows(before.positions[-1], positions)
    same = replace(spec, seed=before.plan.spec.seed)
    if same != before.plan.spec:
        raise OtherRows(
            ["the table, its key or its columns have changed since the run was started"],
            cure="start a new run, without --resume",
            table=f"{spec.schema}.{spec.table}",
        )
    progress.say(f"{len(before.done)} of {len(before.plan.ranges.blocks)} blocks are already finished")
    return same


def _check_rows(before: Sequence[Position], positions: Sequence[Position]) -> None:
    """Raise OtherRows if what was read before is of another history or table than what the snapshots show now.

    A node may be another server now or went back, and another table may have the name, or other files.
    """
    earlier = {position.node: position for position in before}
    servers, tables = [], []
    for position in positions:
        known = earlier[position.node]
        if reason := position.server.why_other(known.server):
            servers.append(f"{position.node} {reason}")
        elif reason := position.facts.why_other(known.facts):
            tables.append(f"node {position.node}: since the table was read, {reason}")
    if servers or tables:
        raise OtherRows(servers + tables, cure="start a new run, without --resume")


def is_same(task: Task, controls: Sequence[Control]) -> bool:
    """Return whether a table that an earlier attempt has finished is the same on all nodes: see `_check_rows`."""
    nodes: Mapping[str, Any] = task.task_context["diff_summary"]["proof"]["nodes"]
    for control in controls:
        if control.node.name not in nodes:
            continue
        before = Position(**nodes[control.node.name])
        try:
            server = server_position(control.connection)
            facts = table_facts(control.connection, task.schema, task.table_name)
        except Exception as error:
            raise error_from_server(error, control.node) from None
        if server.why_other(before.server) or facts.why_other(before.facts):
            return False
    return True


@contextmanager
def no_other_table(run: Comparison, positions: Sequence[Position]) -> Iterator[None]:
    """Note if rows were read, or are read again here, after the table had become another one than in the snapshots."""
    is_one_moment = run.request.settings.snapshot and not run.state.suspects.count and not run.state.mismatched
    yield
    if is_one_moment:
        return
    for control, position in zip(run.controls, positions, strict=True):
        try:
            facts = table_facts(control.connection, run.spec.schema, run.spec.table)
        except Exception as error:
            run.state.stopped = run.state.stopped or error_from_server(error, control.node)
            continue
        reason = facts.why_other(position.facts) if position.files else ""
        if reason and not run.state.stopped:
            reasons = [f"while the table was compared, it became another one: {reason}"]
            run.state.stopped = CheckFailed(reasons, cure="run the command again", node=control.node.name)


def restore(before: Before, state: State) -> frozenset[int]:
    """Add the answers of the finished blocks to the state; return the numbers of these blocks."""
    for answer in before.answers():
        if isinstance(answer, Hashed):
            state.hashed(answer)
        else:
            state.add(answer)
    state.earlier_blocks = len(before.done)
    return before.done
