"""Cells and blocks that several pages have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from trueup.serve.model import Part, Seen
from trueup.serve.render import iso
from trueup.serve.views import Block, Cell, Grid, Notes, Tone, status_tone, verdict_tone
from trueup.store import RUNNING, Task
from trueup.store.history import MATCH, TableState

Trends: TypeAlias = Mapping[tuple[str, ...], Sequence[tuple[float, float]]]


def verdict_cell(state: TableState) -> Cell:
    """Return the verdict of a table, in its colour."""
    run = state.run
    tone = verdict_tone(run.verdict)
    if state.against:
        return Cell(run.verdict, tone="plain", note=state.against)
    if run.is_whole:
        return Cell(run.verdict, tone=tone)
    return Cell(run.verdict, tone="plain" if run.verdict == MATCH else tone, note="of a part of the table")


def task_grid(title: str, listed: Sequence[Task], links: Sequence[tuple[str, str]] = ()) -> Grid:
    """Return a list of tasks."""
    rows = []
    for task in listed:
        summary = task.task_context.get("diff_summary")
        verdict = str(summary.get("verdict") or "") if isinstance(summary, dict) else ""
        rows.append(
            [
                Cell(task.task_id[:8], f"/tasks/{task.task_id}"),
                Cell(task.task_type.lower().replace("_", " ")),
                Cell(f"{task.schema}.{task.table_name}".strip(".")),
                Cell(task.task_status, tone=status_tone(task.task_status)),
                Cell(verdict, tone=task_tone(task, verdict)) if verdict else Cell(progress_text(task)),
                Cell(at=task.started_at),
                Cell("" if task.time_taken is None else f"{task.time_taken:,.1f} s"),
            ]
        )
    heads = ["task", "type", "table", "status", "result", "started", "time"]
    return Grid(title, heads, rows, frozenset({6}), "There are no tasks.", links)


def task_tone(task: Task, verdict: str) -> Tone:
    """Return the colour of the verdict of a task; green only if it compared the whole table."""
    summary = task.task_context.get("diff_summary") or {}
    extents = [summary.get("extent") or {}, *(table.get("extent") or {} for table in summary.get("tables") or ())]
    has_part = any(table.get("part") for table in summary.get("tables") or ())
    is_part = task.task_type.endswith("_RERUN") or has_part or any(any(extent.values()) for extent in extents)
    return "plain" if is_part and verdict == MATCH else verdict_tone(verdict)


def progress_text(task: Task) -> str:
    """Return what a running task does."""
    progress = task.progress
    if task.task_status != RUNNING or not progress:
        return ""
    done, total = progress.get("done"), progress.get("total")
    if isinstance(done, int) and isinstance(total, int) and total:
        return f"{progress.get('stage', '')} {done:,} of {total:,}".strip()
    return str(progress.get("stage") or progress.get("waiting") or "")


def nothing(seen: Seen, text: str) -> str:
    """Return the text of an empty list: why it is empty."""
    if any(not part.is_complete for part in seen.nodes.values()):
        return "Nothing was found, but not everything was read."
    return text if seen.nodes else "The configuration has no PostgreSQL nodes."


def unread(seen: Seen) -> list[Block]:
    """Return the nodes that could not be read, or not completely: what is shown of them is old, or missing."""
    return not_current(seen.nodes.values())


def not_current(parts: Iterable[Part[Any]]) -> list[Block]:
    """Return the sources that could not be read, or not completely."""
    found = list(parts)
    blocks: list[Block] = []
    if lost := [_lost(part) for part in found if part.error]:
        blocks.append(Notes("These sources do not answer", lost, "trouble"))
    if problems := [
        Cell(f"{part.name}: {problem}") for part in found for problem in getattr(part.value, "problems", ())
    ]:
        blocks.append(Notes("Not everything could be read; the rest is shown as it was", problems, "trouble"))
    return blocks


def _lost(part: Part[Any]) -> Cell:
    text = f"{part.name}: {part.error}; shown as it was" if part.seen_at else f"{part.name}: {part.error}"
    return Cell(text, note=part.cure, at=iso(part.seen_at) if part.seen_at else "")
