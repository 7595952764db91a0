"""The plan of a sync and how far one is, for people."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.run import State


def plan_text(plan: Plan) -> str:
    """What will happen, in the order it will; and first of all what cannot."""
    lines = [f"sync {plan.name}: {plan.source} -> {plan.target}"]
    if plan.problems:
        lines.append(f"CANNOT BE DONE: {len(plan.problems)} problem{'s' * (len(plan.problems) > 1)}")
        for problem in plan.problems:
            lines += [f"  - {problem}", f"    what to do: {problem.cure}"]
    size = sum(table.bytes for table in plan.tables)
    lines.append(f"{len(plan.tables)} tables, about {plan.rows:,} rows, {_size(size)}; parents first:")
    width = max((len(str(table)) for table in plan.tables), default=0)
    for table in plan.tables:
        key = ", ".join(table.spec.key_names)
        kind = ", partitioned" if table.is_partitioned else ""
        lines.append(f"  {table!s:<{width}}  ~{table.rows:>13,} rows  {_size(table.bytes):>9}  key ({key}){kind}")
    lines += [f"  a cycle of foreign keys: {' -> '.join(cycle)}" for cycle in plan.cycles]
    lines.append(f"{len(plan.foreign_keys)} foreign keys, {len(plan.sequences)} sequences")
    lines += [f"  {each}" + (f", of {each.owner}" if each.owner else ", free") for each in plan.sequences]
    if plan.create_schema:
        lines.append("the schema is made first; indexes, constraints, views, functions and triggers after the copy")
    how = "with triggers and foreign keys of the target silenced" if plan.mode == "replica" else "in foreign-key order"
    lines.append(f"rows are written {how}")
    lines += [f"note: {remark}" for remark in plan.remarks]
    return "\n".join(lines)


def state_json(state: State) -> dict[str, Any]:
    """How far a sync is, as plain values."""
    known = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(state.known).items()
    }
    waiting = state.waiting or (None, None, None)
    return {
        **known,
        "tables": list(state.known.tables),
        "waiting_entries": waiting[0],
        "waiting_keys": waiting[1],
        "oldest_seconds": waiting[2],
        "running": list(state.running),
    }


_PHASES = {
    "making": "its schema is not made yet: go on with trueup sync start",
    "copying": "not all rows are copied yet: go on with trueup sync start",
    "copied": "rows are copied, indexes are not built yet: go on with trueup sync start",
    "running": "copied; rounds keep it up to date",
}


def state_text(state: State) -> str:
    """How far a sync is."""
    known = state.known
    lines = [f"sync {known.sync}, {len(known.tables)} tables: {_PHASES[known.phase]}"]
    if state.waiting is None:
        lines.append("the change log is gone: changes are not recorded")
    else:
        _, keys, seconds = state.waiting
        lines.append(f"  waiting: {keys:,} keys" + (f", the oldest for {seconds:,.1f} s" if keys else ""))
    lines.append(f"  rounds: {known.rounds:,}, {known.keys:,} keys")
    if known.rounds:
        lines.append(
            f"  last round: {known.last_keys:,} keys in {known.last_ms:,.0f} ms, lag {known.lag_seconds or 0:.1f} s,"
            f" {known.pending_keys or 0:,} keys pending"
        )
    if known.source_lsn == "0/0":
        lines.append("  a large round is at work: the target is between two states")
    elif known.source_at:
        lines.append(
            f"  the target is as the source was at {known.source_at:%Y-%m-%d %H:%M:%S} UTC ({known.source_lsn})"
        )
    who = ", ".join(state.running)
    lines.append(f"  at work: {who}" if who else "  nobody carries changes over now: trueup sync run")
    return "\n".join(lines)


def _size(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 10_000:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.0f} TB"
