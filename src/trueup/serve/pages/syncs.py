"""The page of syncs and switchovers."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.serve import charts
from trueup.serve.model import Seen, SyncSeen
from trueup.serve.pages.parts import Trends, not_current, nothing
from trueup.serve.views import Block, Cell, Chart, Grid, View, status_tone
from trueup.store import Task


def syncs(seen: Seen, trends: Trends) -> View:
    """All syncs, and their switchovers with the conditions and pauses of earlier ones."""
    found = seen.syncs.value or ()
    blocks: list[Block] = [*not_current([*seen.nodes.values(), seen.syncs])]
    rows = [_sync_row(sync) for sync in found]
    heads = ["sync", "phase", "running", "keys waiting", "oldest", "rounds", "tables", "problem"]
    blocks.append(
        Grid("Syncs", heads, rows, frozenset({3, 4, 5, 6}), nothing(seen, "No sync exists between these nodes."))
    )
    for sync in found:
        place = ("sync", sync.source, sync.target, sync.name)
        blocks.append(Chart(f"{sync.name}: keys waiting", charts.lines(trends.get((*place, "pending"), ()), "keys")))
    moves = [sync for sync in found if sync.switchover is not None]
    if moves:
        blocks.append(Grid("Switchovers", ["sync", "in use", "phase"], [_move_row(sync) for sync in moves]))
    tasks = [task for summary in seen.summaries() for task in summary.switchovers]
    if tasks:
        blocks += [_pauses(tasks[:50]), *_gate(tasks)]
    return View("Syncs and switchovers", "syncs", blocks)


def _sync_row(sync: SyncSeen) -> list[Cell]:
    status = sync.status
    known, waiting = (status.known, status.waiting) if status else (None, None)
    problem = "; ".join(filter(None, (sync.problem, status.problem if status else "", status.lost if status else "")))
    return [
        Cell(sync.name, note=f"{sync.source} → {sync.target}"),
        Cell("moved" if status and status.is_moved else known.phase if known else ""),
        Cell("yes" if status and status.running else "no", tone="good" if status and status.running else "plain"),
        Cell(f"{waiting[1]:,}" if waiting else ""),
        Cell(f"{waiting[2]:,.1f} s" if waiting and waiting[0] else ""),
        Cell(f"{known.rounds:,}" if known else ""),
        Cell(f"{len(known.tables):,}" if known else ""),
        Cell(problem, tone="trouble" if problem else ""),
    ]


def _move_row(sync: SyncSeen) -> list[Cell]:
    assert sync.switchover is not None
    return [Cell(sync.name), Cell(sync.switchover.in_use or "neither"), Cell(sync.switchover.phase)]


def _pauses(tasks: Sequence[Task]) -> Grid:
    rows = []
    for task in tasks:
        result = task.task_context.get("diff_summary") or {}
        pause = result.get("pause_ms")
        rows.append(
            [
                Cell(task.task_id[:8], f"/tasks/{task.task_id}"),
                Cell(str(task.task_context.get("sync") or "")),
                Cell(task.task_type.lower().replace("_", " ")),
                Cell(f"{task.task_context.get('from', '')} → {task.task_context.get('to', '')}"),
                Cell("" if pause is None else f"{pause:,.0f} ms"),
                Cell(task.task_status, tone=status_tone(task.task_status)),
                Cell(at=task.started_at),
            ]
        )
    heads = ["task", "sync", "action", "direction", "pause", "status", "started"]
    return Grid("Pauses of switchovers", heads, rows, frozenset({4}))


def _gate(tasks: Sequence[Task]) -> list[Block]:
    """Return the conditions of the gate at the last switchover or rehearsal."""
    for task in tasks:
        conditions = (task.task_context.get("diff_summary") or {}).get("conditions")
        if conditions:
            rows = [
                [
                    Cell(str(condition.get("name", ""))),
                    Cell(
                        "holds" if condition.get("holds") else "does not hold",
                        tone="good" if condition.get("holds") else "trouble",
                    ),
                    Cell(str(condition.get("detail", ""))),
                ]
                for condition in conditions
            ]
            return [Grid(f"Gate of task {task.task_id[:8]}", ["condition", "", "detail"], rows)]
    return []
