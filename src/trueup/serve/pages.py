"""The content of pages, from what the collector has seen last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueup.config.wording import counted, size_text
from trueup.serve import charts
from trueup.serve.attention import attention
from trueup.serve.model import Part, Seen, SyncSeen, TubeSeen, ValidationSeen
from trueup.serve.render import iso
from trueup.serve.views import (
    Block,
    Buttons,
    Cell,
    Chart,
    Facts,
    Form,
    Grid,
    Notes,
    Progress,
    Search,
    Tile,
    Tiles,
    View,
    link_to,
    status_tone,
)
from trueup.store import RUNNING, Task
from trueup.store.browse import Filter
from trueup.store.history import DIFFER, INCOMPLETE, MATCH, TableState

Trends = Mapping[tuple[str, ...], Sequence[tuple[float, float]]]
STATUSES = ("RUNNING", "COMPLETED", "FAILED", "INTERRUPTED")
# Types whose run can be started again with its request.
AGAIN = ("TABLE_DIFF", "TABLE_CHECK")
_STEERED = ("TABLE_DIFF", "TABLE_CHECK", "TABLES_DIFF", "TABLES_CHECK", "TABLE_RERUN", "TUBE_RUN")
_MAX_VALUE = 2_000


def overview(seen: Seen) -> View:
    """What is proven, how old the proofs are, what needs attention."""
    states = [state for summary in seen.summaries() for state in summary.states]
    found = attention(seen)
    running = [task for summary in seen.summaries() for task in summary.running]
    worst = "trouble" if any(cell.tone == "trouble" for cell in found) else "differ" if found else ""
    is_read = any(part.seen_at for part in seen.parts)
    proven = sum(1 for state in states if state.run.verdict == MATCH and state.run.is_whole)
    verdict = f"{counted(len(found), 'problem')} found"
    if not found:
        verdict = "nothing needs attention" if is_read else "reading"
    blocks: list[Block] = [Tiles([*_table_tiles(states, proven), *_live_tiles(seen, running)])]
    if found:
        blocks.append(Notes("What needs attention", found, "trouble" if worst == "trouble" else "differ"))
    blocks.append(_oldest(states))
    if running:
        blocks.append(_task_grid("Running tasks", running))
    return View(
        "What is proven", "overview", blocks, verdict,
        "trouble" if worst == "trouble" else "differ" if worst else "good" if proven == len(states) > 0 else "plain",
    )  # fmt: skip


def _table_tiles(states: Sequence[TableState], proven: int) -> Iterator[Tile]:
    differ = sum(1 for state in states if state.run.verdict == DIFFER)
    incomplete = sum(1 for state in states if state.run.verdict == INCOMPLETE)
    yield Tile("tables proven equal", f"{proven:,} of {len(states):,}", "/tables", "good" if proven else "")
    yield Tile("tables that differ", f"{differ:,}", link_to("/tables", verdict=DIFFER), "differ" if differ else "")
    yield Tile(
        *("not completely compared", f"{incomplete:,}", link_to("/tables", verdict=INCOMPLETE)),
        "trouble" if incomplete else "",
    )


def _live_tiles(seen: Seen, running: Sequence[Task]) -> Iterator[Tile]:
    validations, tubes = seen.validations(), seen.tubes()
    yield Tile("running tasks", f"{len(running):,}", link_to("/tasks", status=RUNNING))
    if validations:
        errors = sum(validation.status.open_errors for validation in validations)
        pending = sum(validation.status.total("pending") for validation in validations)
        note = f"{pending:,} pending in {counted(len(validations), 'validation')}"
        yield Tile("validation errors", f"{errors:,}", "/validations", "differ" if errors else "", note)
    if tubes:
        letters = int(sum(tube.total("dead_letters") for tube in tubes))
        note = f"{letters:,} dead letters in {counted(len(tubes), 'tube')}"
        yield Tile(
            "keys waiting in tubes", f"{sum(t.backlog for t in tubes):,}", "/tubes", "differ" if letters else "", note
        )
    if seen.syncs.value:
        keys = sum(sync.status.waiting[1] for sync in seen.syncs.value if sync.status and sync.status.waiting)
        yield Tile("keys waiting in syncs", f"{keys:,}", "/syncs", "", counted(len(seen.syncs.value), "sync"))
    levels = [finding.level for finding in seen.doctor.value or ()]
    if levels:
        fails, warnings = levels.count("FAIL"), levels.count("WARN")
        yield Tile(
            "doctor", f"{fails:,} failed" if fails else "no failures", "/doctor", "trouble" if fails else "",
            counted(warnings, "warning"),
        )  # fmt: skip


def _oldest(states: Sequence[TableState]) -> Grid:
    proven = sorted((state for state in states if state.matched_at), key=lambda state: str(state.matched_at))
    rows = [
        [_table_cell(state), Cell(at=str(state.matched_at)), Cell(_nodes(state)), verdict_cell(state)]
        for state in proven[:10]
    ]
    never = sum(1 for state in states if not state.matched_at)
    note = f"{counted(never, 'table')} never proven" if never else ""
    return Grid(
        "Oldest proofs", ["table", "proven", "nodes", "last verdict"], rows, empty="No table is proven yet.", note=note
    )


def _nodes(state: TableState) -> str:
    return f"{state.run.cluster_name}: {state.run.nodes}" if state.run.cluster_name else state.run.nodes


def _table_cell(state: TableState) -> Cell:
    run = state.run
    address = link_to("/table", name=run.table_name, cluster=run.cluster_name, nodes=run.nodes)
    return Cell(run.table_name, address)


def verdict_cell(state: TableState) -> Cell:
    """Return the verdict of a table, in its colour."""
    run = state.run
    tones: dict[str, Any] = {MATCH: "good", DIFFER: "differ", INCOMPLETE: "trouble"}
    tone = tones.get(run.verdict, "plain")
    if run.is_whole:
        return Cell(run.verdict, tone=tone)
    return Cell(run.verdict, tone="plain" if run.verdict == MATCH else tone, note="of a part of the table")


# Tasks.


def tasks(listed: Sequence[Task], chosen: Filter, types: Sequence[str], more: str) -> View:
    """A page of tasks; `more` is the address of the next page."""
    search = Search("/tasks", [("type", chosen.task_type, types), ("status", chosen.status, STATUSES)])
    links = [("older tasks", more)] if more else []
    links = (
        [("newest tasks", link_to("/tasks", type=chosen.task_type, status=chosen.status)), *links]
        if chosen.before
        else links
    )
    return View("Tasks", "tasks", [search, _task_grid("Tasks", listed, links)])


def _task_grid(title: str, listed: Sequence[Task], links: Sequence[tuple[str, str]] = ()) -> Grid:
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
                Cell(verdict, tone=_verdict_tone(verdict)) if verdict else Cell(_progress_text(task)),
                Cell(at=task.started_at),
                Cell("" if task.time_taken is None else f"{task.time_taken:,.1f} s"),
            ]
        )
    heads = ["task", "type", "table", "status", "result", "started", "time"]
    return Grid(title, heads, rows, frozenset({6}), "There are no tasks.", links)


def _verdict_tone(verdict: str) -> Any:
    return {MATCH: "good", DIFFER: "differ", INCOMPLETE: "trouble"}.get(verdict, "plain")


def _progress_text(task: Task) -> str:
    progress = task.progress
    if task.task_status != RUNNING or not progress:
        return ""
    done, total = progress.get("done"), progress.get("total")
    if isinstance(done, int) and isinstance(total, int) and total:
        return f"{progress.get('stage', '')} {done:,} of {total:,}".strip()
    return str(progress.get("stage") or progress.get("waiting") or "")


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
        blocks.append(Progress(_progress_text(found) or "running", share))
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
        _verdict_tone(verdict) if verdict else status_tone(found.task_status) or "plain", name,
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
        [Cell(str(name).replace("_", " ")), Cell(_plain(value))]
        for name, value in values.items()
        if value not in ("", None, [], {})
    ]
    return Grid(title, ["name", "value"], rows)


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} … ({len(text):,} characters)"


# Validations.


def validations(seen: Seen) -> View:
    """All validations."""
    rows = []
    for found in seen.validations():
        status = found.status
        rows.append(
            [
                Cell(status.name, link_to("/validation", node=found.meta, name=status.name)),
                Cell(f"{status.source} → {status.target}"),
                _state_cell(status.state, status.is_finished),
                Cell(f"{status.open_errors:,}", tone="differ" if status.open_errors else ""),
                Cell(f"{status.total('pending'):,}"),
                Cell("" if status.lag_seconds is None else f"{status.lag_seconds:,.1f} s"),
                Cell("" if status.lag_bytes is None else size_text(status.lag_bytes)),
                Cell(status.validated or ""),
                Cell(f"{status.total('processed'):,}"),
            ]
        )
    heads = ["validation", "nodes", "state", "errors", "pending", "lag", "lag", "validated through", "changes"]
    grid = Grid(
        "Validations", heads, rows, frozenset({3, 4, 5, 6, 8}), _nothing(seen, "No validation exists on these nodes.")
    )
    return View("Validations", "validations", [*_unread(seen), grid])


def _state_cell(state: str, is_finished: bool) -> Cell:
    return Cell(state, tone="good" if state == "running" else "plain" if is_finished else "trouble")


def _nothing(seen: Seen, text: str) -> str:
    return text if seen.nodes else "The configuration has no PostgreSQL nodes."


def _unread(seen: Seen) -> list[Block]:
    """Return the nodes that do not answer: what is shown of them is old, or nothing."""
    lost = [part for part in seen.nodes.values() if part.error]
    return [Notes("These nodes do not answer", [_lost(part) for part in lost], "trouble")] if lost else []


def _lost(part: Part[Any]) -> Cell:
    text = f"{part.name}: {part.error}; shown as it was" if part.seen_at else f"{part.name}: {part.error}"
    return Cell(text, note=part.cure, at=iso(part.seen_at) if part.seen_at else "")


def validation(found: ValidationSeen, trends: Trends, *, show_rows: bool, allow_actions: bool) -> View:
    """One validation: positions, tables, errors."""
    status = found.status
    place = ("validation", found.meta, status.name)
    facts = {
        "state": _state_cell(status.state, status.is_finished),
        "from": Cell(status.source),
        "to": Cell(status.target),
        "mode": Cell(status.mode),
        "validated through": Cell(status.validated or ""),
        "changes read up to": Cell(status.position or ""),
        "syncer at": Cell(status.syncer or ""),
        "source at": Cell(status.upstream or ""),
        "lag": Cell("" if status.lag_seconds is None else f"{status.lag_seconds:,.1f} s"),
        "log kept for the slot": Cell("" if status.retained_bytes is None else size_text(status.retained_bytes)),
        "pending": Cell(
            f"{status.total('pending'):,} ({status.total('failed'):,} failed, {status.total('hot'):,} hot)"
        ),
        "runs on": Cell(str(status.engine.get("name", ""))),
        "meta database": Cell(found.meta),
    }
    blocks: list[Block] = []
    trouble = [Cell(reason) for reason in status.blind_spots]
    if status.reason:
        trouble.insert(0, Cell(status.reason))
    if trouble:
        blocks.append(Notes("Not checked", trouble, "trouble"))
    blocks.append(Facts(facts))
    blocks.append(Chart("Lag over time", charts.lines(trends.get((*place, "lag_seconds"), ()), "lag", "s")))
    blocks.append(Chart("Pending rows over time", charts.lines(trends.get((*place, "pending"), ()), "pending rows")))
    blocks += [_validation_tables(found), _validation_errors(found, show_rows=show_rows, allow_actions=allow_actions)]
    verdict = "not everything is checked" if trouble else "no errors"
    return View(
        status.name, "validations", blocks,
        counted(status.open_errors, "error") if status.open_errors else verdict,
        "trouble" if trouble else "differ" if status.open_errors else "good",
        f"{status.source} → {status.target}", ("validations", "/validations"),
    )  # fmt: skip


def _validation_tables(found: ValidationSeen) -> Grid:
    rows = [
        [
            Cell(table.source, note="" if table.target == table.source else f"→ {table.target}"),
            Cell(table.stage, tone="" if table.stage == "running" else "trouble", note=table.reason),
            *(Cell(f"{getattr(table, name):,}") for name in ("inserts", "updates", "deletes", "truncates", "pending")),
            Cell(f"{table.errors.get('new', 0):,}", tone="differ" if table.errors.get("new") else ""),
            Cell(f"{table.sweep_passes:,} passes, {table.swept_rows:,} rows" if table.swept_rows else ""),
        ]
        for table in found.status.tables
    ]
    heads = ["table", "stage", "inserts", "updates", "deletes", "truncates", "pending", "errors", "swept"]
    return Grid("Tables", heads, rows, frozenset(range(2, 8)), "No tables yet.")


def _validation_errors(found: ValidationSeen, *, show_rows: bool, allow_actions: bool) -> Grid:
    rows = []
    for error in found.errors:
        row = [
            Cell(str(error.id)),
            Cell(error.source),
            Cell(error.kind, tone="differ"),
            Cell(", ".join(error.columns)),
            Cell(error.op),
            Cell(error.lsn),
            Cell(at=error.first_at.isoformat()),
        ]
        if show_rows:
            row[1:1] = [Cell(", ".join(map(str, error.key)))]
            row += [Cell(_row(error.source_row)), Cell(_row(error.target_row))]
        if allow_actions:
            values = {"validation": found.status.name, "node": found.meta, "id": str(error.id)}
            row.append(Cell(form=Form("ignore", "ignore", values)))
        rows.append(row)
    heads = ["error", *(["key"] if show_rows else []), "table", "kind", "columns", "change", "position", "since"]
    heads += [found.status.source, found.status.target] if show_rows else []
    heads += [""] if allow_actions else []
    shown, total = len(rows), found.status.open_errors
    note = f"the oldest {shown:,} of {total:,} errors" if shown < total else ""
    if rows and not show_rows:
        note = "; ".join(filter(None, (note, "keys and rows are hidden; show them with --show-rows")))
    return Grid("Open errors", heads, rows, empty="No row stayed wrong.", note=note)


def _row(row: Mapping[str, Any] | None) -> str:
    return "no row" if row is None else _plain(row)


# Tubes, syncs, schedule, doctor.


def tubes(seen: Seen) -> View:
    """All tubes."""
    rows = [
        [
            Cell(tube.info.tube, link_to("/tube", node=tube.node, name=tube.info.tube)),
            Cell(tube.node),
            Cell(f"{tube.backlog:,}"),
            Cell(_oldest_wait(tube)),
            Cell(f"{tube.total('keys_per_second'):,.0f}/s"),
            Cell(f"{int(tube.total('dead_letters')):,}", tone="differ" if tube.total("dead_letters") else ""),
            Cell(", ".join(sorted({row.worker for row in tube.stats if row.worker})) or "none"),
            Cell(f"{len(tube.info.tables):,}"),
        ]
        for tube in seen.tubes()
    ]
    heads = ["tube", "node", "keys waiting", "oldest", "delivered", "dead letters", "worker", "tables"]
    grid = Grid("Tubes", heads, rows, frozenset({2, 3, 4, 5, 7}), _nothing(seen, "No tube exists on these nodes."))
    return View("Tubes", "tubes", [*_unread(seen), grid])


def _oldest_wait(tube: TubeSeen) -> str:
    ages = [age for row in tube.stats for age in (row.oldest_live_s, row.oldest_backfill_s) if age is not None]
    return f"{max(ages):,.0f} s" if ages else ""


def _letters(found: TubeSeen, *, show_rows: bool) -> Grid:
    rows = [
        [
            Cell(letter.table or str(letter.source)),
            Cell(letter.op),
            Cell(f"{letter.attempts:,}"),
            Cell(at=letter.first_at.isoformat()),
            Cell(at=letter.last_at.isoformat()),
            Cell(
                "parked" if letter.next_at is None else "retried", tone="trouble" if letter.next_at is None else "plain"
            ),
            *([Cell(letter.key), Cell(letter.error)] if show_rows else []),
        ]
        for letter in found.letters
    ]
    heads = ["table", "change", "attempts", "first", "last", "state", *(["key", "error"] if show_rows else [])]
    note = "" if show_rows or not rows else "keys and errors of rows are hidden; show them with --show-rows"
    return Grid("Dead letters", heads, rows, frozenset({2}), "All keys could be delivered.", note=note)


def tube(found: TubeSeen, trends: Trends, *, show_rows: bool) -> View:
    """One tube: partitions, tables, backlog over time."""
    place = ("tube", found.node, found.info.tube)
    partitions = [
        [
            Cell(str(row.partition)),
            *(
                Cell(f"{getattr(row, name):,}")
                for name in ("live_keys", "backfill_keys", "control_pods", "dead_letters", "parked")
            ),
            Cell(f"{row.keys_per_second:,.0f}/s"),
            Cell(f"{row.keys_done:,}"),
            Cell(row.worker or "none", note=row.waiting or ""),
        ]
        for row in found.stats
    ]
    heads = [
        "partition",
        "keys",
        "backfill keys",
        "control pods",
        "dead letters",
        "parked",
        "rate",
        "delivered",
        "worker",
    ]
    tables = [
        [
            Cell(table.table),
            Cell(table.capture),
            Cell(", ".join(table.key)),
            Cell(table.problem or "", tone="trouble" if table.problem else ""),
        ]
        for table in found.info.tables
    ]
    blocks: list[Block] = [
        Chart("Keys waiting over time", charts.lines(trends.get((*place, "backlog"), ()), "keys")),
        Chart("Keys delivered per second", charts.lines(trends.get((*place, "rate"), ()), "keys", "/s")),
        Grid("Partitions", heads, partitions, frozenset(range(1, 8))),
        _letters(found, show_rows=show_rows),
        Grid("Tables", ["table", "capture", "key", "problem"], tables, empty="No table is attached."),
    ]
    letters = int(found.total("dead_letters"))
    verdict = counted(letters, "dead letter") if letters else f"{found.backlog:,} keys wait"
    return View(
        found.info.tube,
        "tubes",
        blocks,
        verdict,
        "differ" if letters else "plain",
        f"on {found.node}",
        ("tubes", "/tubes"),
    )


def syncs(seen: Seen, trends: Trends) -> View:
    """All syncs, and their switchovers with the conditions and pauses of earlier ones."""
    found = seen.syncs.value or ()
    blocks: list[Block] = [*_unread(seen)]
    rows = [_sync_row(sync) for sync in found]
    heads = ["sync", "phase", "running", "keys waiting", "oldest", "rounds", "tables", "problem"]
    blocks.append(
        Grid("Syncs", heads, rows, frozenset({3, 4, 5, 6}), _nothing(seen, "No sync exists between these nodes."))
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


def schedule(seen: Seen) -> View:
    """The jobs of the schedule: last and next times."""
    rows = [
        [
            Cell(job.name, note=job.command),
            Cell(job.when),
            Cell(at=job.last, link=f"/tasks/{job.task_id}") if job.last else Cell("never"),
            Cell(job.status, tone=status_tone(job.status)),
            Cell(job.result),
            Cell(at=job.next) if job.next else Cell(),
        ]
        for job in seen.schedule.value or ()
    ]
    heads = ["job", "when", "last run", "status", "result", "next run"]
    return View(
        "Schedule", "schedule", [Grid("Jobs", heads, rows, empty="The configuration has no jobs ([schedule.NAME]).")]
    )


def doctor(seen: Seen) -> View:
    """The findings of doctor, problems first."""
    order = {"FAIL": 0, "WARN": 1, "OK": 2}
    tones: dict[str, Any] = {"FAIL": "trouble", "WARN": "differ", "OK": "good"}
    found = sorted(seen.doctor.value or (), key=lambda finding: order[finding.level])
    rows = [
        [
            Cell(each.check),
            Cell(each.where),
            Cell(each.level, tone=tones[each.level]),
            Cell(each.message, note=each.cure),
        ]
        for each in found
    ]
    note = "Checked every 10 minutes, without Spark; run trueup doctor for all checks."
    return View(
        "Doctor",
        "doctor",
        [Grid("Findings", ["check", "where", "level", "finding"], rows, empty="Not checked yet.", note=note)],
    )


def actions(rows: Sequence[Mapping[str, Any]]) -> View:
    """The actions that users of this page requested."""
    cells = [
        [
            Cell(str(row["action"])),
            Cell(str(row["target"])),
            Cell(str(row["who"])),
            Cell(at=str(row["at"])),
            Cell(str(row["outcome"])),
        ]
        for row in rows
    ]
    return View(
        "Actions", "overview", [Grid("Actions", ["action", "of", "who", "when", "outcome"], cells, empty="None yet.")]
    )
