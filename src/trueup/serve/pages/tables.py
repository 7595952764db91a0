"""The pages about tables: their verdicts, proofs and trends, and where in the key space a table differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

from trueup.errors import StoreError
from trueup.report.history import differing_rows
from trueup.report.json_reader import open_report, showing
from trueup.serve import charts
from trueup.serve.model import Seen
from trueup.serve.pages.parts import verdict_cell
from trueup.serve.render import seconds_of
from trueup.serve.views import Block, Cell, Chart, Facts, Grid, Search, View, link_to, verdict_tone
from trueup.store.history import ACCEPTED, DIFFER, INCOMPLETE, MATCH, TableRun, TableState

PAGE = 100
TREND = 20
VERDICTS = (MATCH, ACCEPTED, DIFFER, INCOMPLETE)
_CELLS = 64
# Differences of a report that are read for the map.
_MOST_KEYS = 200_000


def chosen_states(seen: Seen, text: str, verdict: str) -> list[TableState]:
    """Return the tables whose name contains a text and whose verdict is this one; '' does not restrict."""
    needle = text.lower()
    return [
        state for state in seen.states if needle in state.run.table_name.lower() and verdict in ("", state.run.verdict)
    ]


def tables(
    states: Sequence[TableState],
    runs_of: Callable[[TableState], Sequence[TableRun]],
    text: str,
    verdict: str,
    first: int,
) -> View:
    """A page of tables."""
    search = Search("/tables", [("name", text, ()), ("verdict", verdict, VERDICTS)])
    shown = states[first : first + PAGE]
    links = []
    if first:
        links.append(
            ("previous tables", link_to("/tables", name=text, verdict=verdict, first=str(max(0, first - PAGE))))
        )
    if first + PAGE < len(states):
        links.append(("next tables", link_to("/tables", name=text, verdict=verdict, first=str(first + PAGE))))
    heads = ["table", "verdict", "proven", "differences", "trend", "rows/s", "last run", "nodes", "runs"]
    rows = [_table_row(state, runs_of(state)) for state in shown]
    count = f"{first + 1:,} to {first + len(shown):,} of {len(states):,} tables" if len(states) > PAGE else ""
    grid = Grid("Tables", heads, rows, frozenset({3, 8}), "No table was compared yet.", links, count)
    return View("Tables", "tables", [search, grid])


def _table_row(state: TableState, runs: Sequence[TableRun]) -> list[Cell]:
    run, oldest_first = state.run, list(reversed(runs))
    address = link_to("/table", name=run.table_name, cluster=run.cluster_name, nodes=run.nodes)
    rates = [each.rows / each.seconds if each.seconds and each.rows else None for each in oldest_first]
    return [
        Cell(run.table_name, address),
        verdict_cell(state),
        Cell(at=state.matched_at) if state.matched_at else Cell("never"),
        Cell(_differences(run)),
        Cell(picture=charts.bars([differing_rows(vars(each)) for each in oldest_first], "differences")),
        Cell(picture=charts.bars(rates, "rows per second", "rate")),
        Cell(at=run.finished_at),
        Cell(f"{run.cluster_name}: {run.nodes}" if run.cluster_name else run.nodes),
        Cell(f"{state.runs:,}"),
    ]


def _differences(run: TableRun) -> str:
    if run.differences is None or (run.verdict == INCOMPLETE and not run.differences):
        return "?"
    if run.accepted:
        return f"{run.differences:,} and {run.accepted:,} accepted"
    return f"{run.differences:,} blocks" if run.mode == "check" and run.differences else f"{run.differences:,}"


def table(state: TableState, runs: Sequence[TableRun], report: str, *, show_rows: bool) -> View:
    """One table: its trend, the map of its last report, and its runs (the newest first)."""
    run, oldest_first = state.run, list(reversed(runs))
    facts = {
        "last run": Cell(at=run.finished_at, link=f"/tasks/{run.task_id}"),
        "proven": Cell(at=state.matched_at) if state.matched_at else Cell("never"),
        "differences": Cell(_differences(run)),
        "nodes": Cell(run.nodes),
        "cluster": Cell(run.cluster_name),
        "rows compared": Cell(f"{run.rows:,}"),
        "runs": Cell(f"{state.runs:,}"),
    }
    counts = [
        (seconds_of(each.finished_at), float(rows))
        for each in oldest_first
        if (rows := differing_rows(vars(each))) is not None
    ]
    rates = [
        (seconds_of(each.finished_at), each.rows / each.seconds) for each in oldest_first if each.seconds and each.rows
    ]
    blocks: list[Block] = [
        Facts(facts),
        Chart("Differences over time", charts.lines(counts, "differences", "rows")),
        Chart("Rows compared per second", charts.lines(rates, "rows per second", "rows/s")),
        _map(report, show_rows=show_rows),
        _kinds(run),
        _runs(runs),
    ]
    verdict, tone = run.verdict, verdict_tone(run.verdict)
    if run.verdict == MATCH and not state.is_proven:
        tone = "plain"
    meaning = "all rows and columns were compared" if run.is_whole and run.verdict != INCOMPLETE else ""
    if not run.is_whole:
        meaning = "only a part of the table was compared"
    meaning = "; ".join(filter(None, (meaning, state.against)))
    return View(run.table_name, "tables", blocks, verdict, tone, meaning, ("tables", "/tables"))


def _kinds(run: TableRun) -> Grid:
    names = ("missing", "extra", "changed", "in_flight", "hot")
    rows = [[Cell(pair), *(Cell(f"{counts.get(name, 0):,}") for name in names)] for pair, counts in run.kinds.items()]
    heads = ["pair", *(name.replace("_", " ") for name in names)]
    return Grid(
        "Pairs of nodes at the last run",
        heads,
        rows if run.mode != "check" else [],
        frozenset(range(1, 6)),
        "Rows were not counted.",
    )


def _runs(runs: Sequence[TableRun]) -> Grid:
    rows = [
        [
            Cell(run.task_id[:8], f"/tasks/{run.task_id}"),
            Cell(at=run.finished_at),
            Cell(run.mode if run.is_whole or run.mode == "rerun" else f"{run.mode} of a part"),
            Cell(run.verdict, tone=verdict_tone(run.verdict) if run.is_whole or run.verdict != MATCH else "plain"),
            Cell(_differences(run)),
            Cell(f"{run.rows:,}"),
            Cell(f"{run.seconds:,.1f} s"),
            Cell(", ".join(f"{node} {position}" for node, position in run.positions.items())),
        ]
        for run in runs
    ]
    heads = ["task", "ended", "mode", "verdict", "differences", "rows", "time", "positions"]
    return Grid("Runs", heads, rows, frozenset({4, 5, 6}))


def _map(report: str, *, show_rows: bool) -> Chart:
    try:
        counts, ends = _counted(report, Path(report).stat().st_mtime_ns) if report else ((), None)
    except (OSError, StoreError):
        counts, ends = (), None
    text = "From the first to the last key that differs; darker cells have more differences."
    return Chart("Where the table differs", charts.key_map(counts, ends if show_rows else None), text)


@lru_cache(maxsize=64)
def _counted(report: str, changed: int) -> tuple[tuple[int, ...], tuple[str, str] | None]:
    """Return the differences per part of the key space, and its ends; kept until the file changes."""
    path = Path(report)
    content = open_report(path)
    with showing(path):
        read = content.keys()
        keys = [tuple(map(str, key)) for _, key, _ in islice(read, _MOST_KEYS)]
    places = _places(keys)
    if not places:
        return (), None
    low, high = min(places), max(places)
    counts = [0] * _CELLS
    for place in places:
        counts[min(_CELLS - 1, int(_CELLS * (place - low) / (high - low))) if high > low else 0] += 1
    first, last = keys[places.index(low)], keys[places.index(high)]
    return tuple(counts), (", ".join(first), ", ".join(last))


def _places(keys: Sequence[tuple[str, ...]]) -> list[float]:
    """Return the place of each key: its first column as a number; else its rank among the keys that differ."""
    numbers = _numbers(key[0] for key in keys if key)
    if numbers is not None and len(numbers) == len(keys):
        return numbers
    ranks = {key: float(rank) for rank, key in enumerate(sorted(set(keys)))}
    return [ranks[key] for key in keys]


def _numbers(texts: Iterable[str]) -> list[float] | None:
    try:
        return [float(int(text)) for text in texts]
    except (ValueError, OverflowError):
        return None
