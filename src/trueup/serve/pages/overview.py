"""The overview: what is proven, how old the proofs are, what needs attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trueup.config.wording import counted
from trueup.serve.attention import attention
from trueup.serve.model import Seen
from trueup.serve.pages.parts import task_grid, verdict_cell
from trueup.serve.views import Block, Cell, Grid, Notes, Tile, Tiles, View, link_to
from trueup.store import RUNNING, Task
from trueup.store.history import DIFFER, INCOMPLETE, TableState


def overview(seen: Seen) -> View:
    """What is proven, how old the proofs are, what needs attention."""
    states = seen.states
    found = attention(seen)
    running = [task for summary in seen.summaries() for task in summary.running]
    worst = "trouble" if any(cell.tone == "trouble" for cell in found) else "differ" if found else ""
    is_read = all(part.tried_at for part in seen.parts)
    proven = sum(state.is_proven for state in states)
    verdict = f"{counted(len(found), 'problem')} found"
    if not found:
        verdict = "nothing needs attention" if is_read else "reading"
    blocks: list[Block] = [Tiles([*_table_tiles(states, proven), *_live_tiles(seen, running)])]
    if found:
        blocks.append(Notes("What needs attention", found, "trouble" if worst == "trouble" else "differ"))
    blocks.append(_oldest(states))
    if running:
        blocks.append(task_grid("Running tasks", running))
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
