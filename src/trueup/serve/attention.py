"""What needs attention: differences, failures, errors, and sources that do not answer."""

from __future__ import annotations

from collections.abc import Iterator

from trueup.config.wording import counted
from trueup.serve.model import Seen
from trueup.serve.views import Cell, link_to, verdict_tone
from trueup.store.history import DIFFER, INCOMPLETE

# Entries of one kind that the overview lists.
_MOST = 20


def attention(seen: Seen) -> list[Cell]:
    """Return what needs attention, the worst first."""
    found = [*_parts(seen), *_tables(seen), *_validations(seen), *_tubes(seen), *_syncs(seen), *_tasks(seen)]
    found += [
        Cell(f"doctor: {each.check} {each.where}: {each.message}", "/doctor", "trouble", note=each.cure)
        for each in seen.doctor.value or ()
        if each.level == "FAIL"
    ]
    return sorted(found, key=lambda cell: cell.tone != "trouble")


def _parts(seen: Seen) -> Iterator[Cell]:
    for part in seen.parts:
        if part.error:
            yield Cell(f"{part.name}: {part.error}", tone="trouble", note=part.cure)
    for node in seen.nodes.values():
        for problem in node.value.problems if node.value else ():
            yield Cell(f"{node.name}: {problem}", tone="trouble")


def _tables(seen: Seen) -> Iterator[Cell]:
    for verdict in (INCOMPLETE, DIFFER):
        tone = verdict_tone(verdict)
        chosen = [state.run for state in seen.states if state.run.verdict == verdict]
        for run in chosen[:_MOST]:
            unit = "block" if run.mode == "check" else "row"
            count = f", {counted(run.differences, unit)}" if run.differences else ""
            address = link_to("/table", name=run.table_name, cluster=run.cluster_name, nodes=run.nodes)
            yield Cell(f"{run.table_name}: {verdict}{count}", address, tone)
        if len(chosen) > _MOST:
            more = f"{len(chosen) - _MOST:,} more tables are {verdict}"
            yield Cell(more, link_to("/tables", verdict=verdict), tone)


def _validations(seen: Seen) -> Iterator[Cell]:
    for validation in seen.validations():
        status = validation.status
        address = link_to("/validation", node=validation.meta, name=status.name)
        if status.open_errors:
            yield Cell(f"validation {status.name}: {counted(status.open_errors, 'error')}", address, "differ")
        for reason in status.blind_spots:
            yield Cell(f"validation {status.name}: {reason}", address, "trouble")
        if status.state != "running" and not status.is_finished:
            note = f"; {status.reason}" if status.reason else ""
            yield Cell(f"validation {status.name} is {status.state}{note}", address, "trouble")


def _tubes(seen: Seen) -> Iterator[Cell]:
    for tube in seen.tubes():
        address = link_to("/tube", node=tube.node, name=tube.name)
        letters = int(tube.total("dead_letters"))
        if letters:
            yield Cell(f"tube {tube.name}: {counted(letters, 'dead letter')}", address, "differ")
        for table in tube.info.tables:
            if table.problem:
                yield Cell(f"tube {tube.name}: {table.table}: {table.problem}", address, "trouble")
        if tube.backlog and not any(row.worker for row in tube.stats):
            yield Cell(f"tube {tube.name}: {counted(tube.backlog, 'key')} wait, and no worker runs", address, "differ")


def _syncs(seen: Seen) -> Iterator[Cell]:
    for sync in seen.syncs.value or ():
        name = f"sync {sync.name} from {sync.source} to {sync.target}"
        reasons = [sync.problem] if sync.problem else []
        if sync.status is not None:
            reasons += [reason for reason in (sync.status.problem, sync.status.lost) if reason]
            reasons += [str(problem) for problem in (sync.status.known.aside if sync.status.known else ())]
            waiting = sync.status.waiting
            if waiting and waiting[1] and not sync.status.running:
                yield Cell(f"{name}: {counted(waiting[1], 'key')} wait, and it does not run", "/syncs", "differ")
        yield from (Cell(f"{name}: {reason}", "/syncs", "trouble") for reason in reasons)


def _tasks(seen: Seen) -> Iterator[Cell]:
    for summary in seen.summaries():
        for task in summary.failed[:_MOST]:
            error = str(task.task_context.get("error") or "").splitlines()
            name = f"{task.schema}.{task.table_name}".strip(".")
            text = f"{task.task_type} {name}".strip() + " failed"
            yield Cell(text, f"/tasks/{task.task_id}", "trouble", note=error[0] if error else "", at=task.started_at)
