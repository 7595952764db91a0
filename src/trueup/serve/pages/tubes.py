"""The pages of tubes."""

from __future__ import annotations

from typing import Any

from trueup.config.wording import counted
from trueup.serve import charts
from trueup.serve.model import Part, Seen, TubeSeen
from trueup.serve.pages.parts import Trends, not_current, nothing, unread
from trueup.serve.views import Block, Cell, Chart, Grid, View, link_to


def tubes(seen: Seen) -> View:
    """All tubes."""
    rows = [
        [
            Cell(tube.name, link_to("/tube", node=tube.node, name=tube.name)),
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
    grid = Grid("Tubes", heads, rows, frozenset({2, 3, 4, 5, 7}), nothing(seen, "No tube exists on these nodes."))
    return View("Tubes", "tubes", [*unread(seen), grid])


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


def tube(found: TubeSeen, part: Part[Any], trends: Trends, *, show_rows: bool) -> View:
    """One tube: partitions, tables, backlog over time."""
    place = ("tube", found.node, found.name)
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
        *not_current([part]),
        Chart("Keys waiting over time", charts.lines(trends.get((*place, "backlog"), ()), "keys")),
        Chart("Keys delivered per second", charts.lines(trends.get((*place, "rate"), ()), "keys", "/s")),
        Grid("Partitions", heads, partitions, frozenset(range(1, 8))),
        _letters(found, show_rows=show_rows),
        Grid("Tables", ["table", "capture", "key", "problem"], tables, empty="No table is attached."),
    ]
    letters = int(found.total("dead_letters"))
    verdict = counted(letters, "dead letter") if letters else f"{found.backlog:,} keys wait"
    return View(
        found.name,
        "tubes",
        blocks,
        verdict,
        "differ" if letters else "plain",
        f"on {found.node}",
        ("tubes", "/tubes"),
    )
