"""The pages of the schedule, of doctor, and of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trueup.serve.model import Seen
from trueup.serve.pages.parts import not_current
from trueup.serve.views import Cell, Grid, View, status_tone


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
        "Schedule",
        "schedule",
        [
            *not_current([seen.schedule]),
            Grid("Jobs", heads, rows, empty="The configuration has no jobs ([schedule.NAME])."),
        ],
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
        [
            *not_current([seen.doctor]),
            Grid("Findings", ["check", "where", "level", "finding"], rows, empty="Not checked yet.", note=note),
        ],
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
