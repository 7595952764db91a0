"""The pages of tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trueup.serve.pages.parts import progress_text, task_grid, task_tone
from trueup.serve.views import (
    Block,
    Buttons,
    Cell,
    Facts,
    Form,
    Grid,
    Notes,
    Progress,
    Search,
    View,
    link_to,
    status_tone,
)
from trueup.store import RUNNING, Task
from trueup.store.browse import Filter

STATUSES = ("RUNNING", "COMPLETED", "FAILED", "INTERRUPTED")
# Types whose run can be started again with its request.
AGAIN = ("TABLE_DIFF", "TABLE_CHECK")
_STEERED = ("TABLE_DIFF", "TABLE_CHECK", "TABLES_DIFF", "TABLES_CHECK", "TABLE_RERUN", "TUBE_RUN")
_MAX_VALUE = 2_000


def tasks(listed: Sequence[Task], chosen: Filter, types: Sequence[str], more: str) -> View:
    """A page of tasks; `more` is the address of the next page."""
    search = Search("/tasks", [("type", chosen.task_type, types), ("status", chosen.status, STATUSES)])
    links = [("older tasks", more)] if more else []
    links = (
        [("newest tasks", link_to("/tasks", type=chosen.task_type, status=chosen.status)), *links]
        if chosen.before
        else links
    )
    return View("Tasks", "tasks", [search, task_grid("Tasks", listed, links)])


def task(found: Task, *, allow_actions: bool, store: str) -> View:
    """One task: its request, its progress, its result, and its report."""
    context = dict(found.task_context)
    summary, error = context.pop("diff_summary", None) or {}, str(context.pop("error", "") or "")
    verdict = str(summary.get("verdict") or "") if isinstance(summary, dict) else ""
    name = f"{found.schema}.{found.table_name}".strip(".")
    facts = {
        "status": Cell(found.task_status, tone=status_tone(found.task_status)),
        "type": Cell(found.task_type.lower().replace("_", " ")),
        "table": Cell(name),
        "cluster": Cell(found.cluster_name),
        "started": Cell(at=found.started_at),
        "time": Cell("" if found.time_taken is None else f"{found.time_taken:,.1f} s"),
        "last heartbeat": Cell(at=found.heartbeat_at) if found.task_status == RUNNING else Cell(),
        "process": Cell(f"{found.pid} on {found.host}"),
        "task store": Cell(store),
    }
    blocks: list[Block] = []
    if found.task_status == RUNNING:
        done, total = found.progress.get("done"), found.progress.get("total")
        is_known = isinstance(done, int) and isinstance(total, int) and bool(total)
        share = min(1.0, float(done) / float(total)) if is_known else None  # type: ignore[arg-type]
        blocks.append(Progress(progress_text(found) or "running", share))
    if error:
        blocks.append(Notes("Error", [Cell(line) for line in error.splitlines()[:50]], "trouble"))
    blocks.append(Facts(facts))
    if found.task_status != RUNNING:
        blocks.append(Notes("Report", [Cell("the report of this task", f"/tasks/{found.task_id}/report")]))
    if allow_actions:
        blocks.append(Buttons(_task_forms(found)))
    progress = {key: value for key, value in found.progress.items() if key not in ("done", "total", "stage")}
    for title, values in (("Progress", progress), ("Result", summary), ("Request", context)):
        if values:
            blocks.append(_named(title, values))
    return View(
        found.task_id[:8], "tasks", blocks, verdict or found.task_status,
        task_tone(found, verdict) if verdict else status_tone(found.task_status) or "plain", name,
        ("tasks", "/tasks"),
    )  # fmt: skip


def _task_forms(found: Task) -> list[Form]:
    values = {"task": found.task_id}
    forms = []
    if found.task_status == RUNNING and found.task_type in _STEERED:
        forms += [Form(label, label, values) for label in ("pause", "resume", "stop")]
    if found.task_status != RUNNING and found.task_type in AGAIN:
        forms.append(Form("run again", "rerun", values))
    return forms


def _named(title: str, values: Mapping[str, Any]) -> Grid:
    rows = [
        [Cell(str(name).replace("_", " ")), Cell(plain(value))]
        for name, value in values.items()
        if value not in ("", None, [], {})
    ]
    return Grid(title, ["name", "value"], rows)


def plain(value: Any) -> str:
    """Return a value as text, a long one cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} … ({len(text):,} characters)"
