"""The pages of validations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.config.wording import counted, size_text
from trueup.serve import charts
from trueup.serve.model import Part, Seen, ValidationSeen
from trueup.serve.pages.parts import Trends, not_current, nothing, unread
from trueup.serve.pages.tasks import plain
from trueup.serve.views import Cell, Chart, Facts, Form, Grid, Notes, Tone, View, link_to


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
        "Validations", heads, rows, frozenset({3, 4, 5, 6, 8}), nothing(seen, "No validation exists on these nodes.")
    )
    return View("Validations", "validations", [*unread(seen), grid])


def _state_cell(state: str, is_finished: bool) -> Cell:
    return Cell(state, tone="good" if state == "running" else "plain" if is_finished else "trouble")


def validation(found: ValidationSeen, part: Part[Any], trends: Trends, *, show_rows: bool, allow_actions: bool) -> View:
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
    blocks = not_current([part])
    trouble = [Cell(reason) for reason in status.blind_spots]
    if status.reason:
        trouble.insert(0, Cell(status.reason))
    if trouble:
        blocks.append(Notes("Not checked", trouble, "trouble"))
    blocks.append(Facts(facts))
    blocks.append(Chart("Lag over time", charts.lines(trends.get((*place, "lag_seconds"), ()), "lag", "s")))
    blocks.append(Chart("Pending rows over time", charts.lines(trends.get((*place, "pending"), ()), "pending rows")))
    blocks += [_validation_tables(found), _validation_errors(found, show_rows=show_rows, allow_actions=allow_actions)]
    verdict, tone = _verdict(found, is_current=part.is_complete, is_checked=not trouble)
    meaning = f"{status.source} → {status.target}"
    return View(status.name, "validations", blocks, verdict, tone, meaning, ("validations", "/validations"))


def _verdict(found: ValidationSeen, *, is_current: bool, is_checked: bool) -> tuple[str, Tone]:
    """Return the verdict; green only if it is of now: a process checks changes, or all of them are decided."""
    status = found.status
    is_live = is_current and (status.state == "running" or status.is_finished)
    if status.open_errors:
        return counted(status.open_errors, "error"), "differ" if is_checked and is_live else "trouble"
    if not is_checked:
        return "not everything is checked", "trouble"
    if not is_current:
        return "not known: the node does not answer", "trouble"
    return ("no errors", "good") if is_live else ("no errors so far, but it does not run", "trouble")


def _validation_tables(found: ValidationSeen) -> Grid:
    rows = [
        [
            Cell(table.source, note="" if table.target == table.source else f"→ {table.target}"),
            Cell(table.stage, tone="" if table.stage == "running" else "trouble", note=table.reason),
            *(Cell(f"{getattr(table, name):,}") for name in ("inserts", "updates", "deletes", "truncates", "pending")),
            Cell(f"{table.errors.get('new', 0):,}", tone="differ" if table.errors.get("new") else ""),
            Cell(f"{table.scrub_passes:,} passes, {table.scrubbed_rows:,} rows" if table.scrubbed_rows else ""),
        ]
        for table in found.status.tables
    ]
    heads = ["table", "stage", "inserts", "updates", "deletes", "truncates", "pending", "errors", "scrubbed"]
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
    return "no row" if row is None else plain(row)
