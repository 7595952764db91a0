"""The plan and the status of a sync as text."""

from __future__ import annotations

from trueup.config.visible import as_lines
from trueup.config.wording import counted, size_text
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.state import State
from trueup.verbs.sync.status import SyncStatus


def plan_text(plan: Plan) -> str:
    """Return the plan as text: first its problems, then what will be done, in order."""
    lines = [f"sync {plan.name}: {plan.source} -> {plan.target}"]
    if plan.problems:
        lines.append(f"NOT POSSIBLE: {counted(len(plan.problems), 'problem')}")
        for problem in plan.problems:
            lines += [f"  - {problem}", f"    what to do: {problem.cure}"]
    size = sum(table.bytes for table in plan.tables)
    lines.append(
        f"{counted(len(plan.tables), 'table')}, about {counted(plan.rows, 'row')}, {size_text(size)}; parents first:"
    )
    width = max((len(str(table)) for table in plan.tables), default=0)
    for table in plan.tables:
        key = f"key ({', '.join(table.spec.key_names)})" if table.spec.key else "no key"
        kind = ", partitioned" if table.is_partitioned else ""
        lines.append(f"  {table!s:<{width}}  ~{table.rows:>13,} rows  {size_text(table.bytes):>11}  {key}{kind}")
    lines += [f"  a cycle of foreign keys: {' -> '.join(cycle)}" for cycle in plan.cycles]
    lines.append(f"{counted(len(plan.foreign_keys), 'foreign key')}, {counted(len(plan.sequences), 'sequence')}")
    lines += [f"  {sequence}" + (f", of {sequence.owner}" if sequence.owner else "") for sequence in plan.sequences]
    if plan.roles:
        lines.append(f"roles that are created on the target: {', '.join(plan.roles)}")
    if plan.create_schema:
        lines.append("tables, views and functions are created first; indexes, constraints and triggers after the copy")
    how = "in foreign-key order" if plan.is_ordered else "with triggers and foreign keys of the target silenced"
    lines.append(f"rows are written {how}")
    lines += [f"note: {remark}" for remark in plan.remarks]
    return as_lines(lines)


_PHASES = {
    "making": "its schema is not created yet; continue with trueup sync start",
    "copying": "the copy is not finished; continue with trueup sync start",
    "copied": "rows are copied, large objects and indexes may be missing; continue with trueup sync start",
    "building": "rows are copied, indexes are being built; continue with trueup sync start",
    "running": "copied; rounds keep it up to date",
}


_MOVED = "applications were moved to the target; see trueup switchover status"


def status_text(status: SyncStatus) -> str:
    """Return the status as text."""
    lines = [f"sync {status.sync}: {status.lost}"] if status.lost else []
    if status.known is not None:
        count = counted(len(status.known.tables), "table")
        lines.append(f"sync {status.sync}, {count}: {_MOVED if status.is_moved else _PHASES[status.known.phase]}")
        names = {problem.where for problem in status.known.aside}
        if names:
            lines.append(f"INCOMPLETE: {len(names)} set aside; their rows are not up to date:")
        for problem in status.known.aside:
            lines += [f"  - {problem}", f"    what to do: {problem.cure}"]
    if status.outside:
        named = (f"{name} ({why or 'not excluded: see trueup sync plan'})" for name, why in status.outside)
        lines.append(f"  not in the sync: {', '.join(named)}")
    if status.waiting is not None:
        _, keys, seconds = status.waiting
        lines.append(f"  change log: {counted(keys, 'key')}" + (f", the oldest {seconds:,.1f} s old" if keys else ""))
    elif not status.lost or status.known is None:
        lines.append("the change log does not exist: changes are not recorded")
    if status.known is not None and not status.is_moved:
        lines += _rounds(status.known, status.problem)
    if status.is_moved:
        return as_lines([*lines, *([f"  {status.problem}"] if status.problem else [])])
    if not status.lost:
        running = ", ".join(status.running)
        is_copied = status.known is None or status.known.phase == "running"
        advice = ": trueup sync run" if is_copied else ""
        lines.append(f"  running: {running}" if running else f"  the sync is not running{advice}")
        return as_lines(lines)
    option = "--without-target" if status.known is None else "--without-source"
    lines.append(f"  if that node is lost for good: trueup sync drop {option}")
    return as_lines(lines)


def _rounds(known: State, problem: str) -> list[str]:
    lines = [f"  rounds: {known.rounds:,}, {counted(known.keys, 'key')}"]
    if known.rounds:
        lines.append(
            f"  last round: {counted(known.last_keys, 'key')} in {known.last_ms:,.0f} ms,"
            f" lag {known.lag_seconds or 0:.1f} s, {counted(known.pending_keys or 0, 'key')} pending"
        )
    if problem:
        lines.append(f"  STOPPED: {problem}; see trueup sync run")
    elif known.source_lsn == "0/0":
        lines.append("  a large round is not complete: the target is between two states")
    elif known.source_at:
        rest = ", except for what is set aside" if known.aside else ""
        lines.append(
            f"  the target equals the source as of {known.source_at:%Y-%m-%d %H:%M:%S} UTC ({known.source_lsn}){rest}"
        )
    return lines
