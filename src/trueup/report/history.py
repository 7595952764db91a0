"""The history of tables as text: verdicts, ages of proofs, and a sparkline of the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from trueup.config.visible import as_lines
from trueup.report.text import aligned, moment

_BARS = "▁▂▃▄▅▆▇█"
# A run whose number of differences is not known.
_UNKNOWN = "?"
# Runs in a trend of one table.
TREND = 20


def sparkline(values: Sequence[int | None]) -> str:
    """Return one character per value: the lowest bar is 0, and only 0; the highest is the largest value."""
    most = max((value for value in values if value is not None), default=0)
    text = ""
    for value in values:
        if value is None:
            text += _UNKNOWN
        else:
            text += _BARS[-(-(len(_BARS) - 1) * max(0, value) // max(1, most))]
    return text


def differing_rows(run: Mapping[str, Any]) -> int | None:
    """Return the number of differing rows, for a trend; None if it is not known: a check counts blocks."""
    count: int | None = run["differences"]
    is_known = run["verdict"] != "INCOMPLETE" and not (run["mode"] == "check" and count)
    return count if is_known else None


def age_text(seconds: float) -> str:
    """Return a duration in its largest unit, such as `3 d`, `5 h`, `12 min` or `8 s`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def states_text(states: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per table: verdict, age of the last proof, and the trend of its last runs (the newest first)."""
    trends: dict[tuple[str, str, str], list[int | None]] = {}
    for run in runs:
        trend = trends.setdefault(_scope(run), [])
        if len(trend) < TREND:
            trend.insert(0, differing_rows(run))
    rows = [["TABLE", "NODES", "VERDICT", "PROVEN", "LAST RUN (UTC)", "DIFFERENCES", "TREND", "RUNS"]]
    for state in states:
        run = state["run"]
        rows.append(
            [
                run["table_name"],
                run["cluster_name"] or run["nodes"],
                _verdict(run) + (f", {state['against']}" if state["against"] else ""),
                f"{age_text(_age(state['matched_at']))} ago" if state["matched_at"] else "never",
                moment(run["finished_at"]),
                _count(run),
                sparkline(trends.get(_scope(run), [])),
                f"{state['runs']:,}",
            ]
        )
    return as_lines(aligned(rows))


def runs_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per run, and the sparkline of each set of nodes."""
    rows = [["ENDED (UTC)", "NODES", "MODE", "VERDICT", "DIFFERENCES", "ROWS", "TIME", "TASK"]]
    trends: dict[tuple[str, str, str], list[int | None]] = {}
    for run in runs:
        trends.setdefault(_scope(run), []).insert(0, differing_rows(run))
        rows.append(
            [
                moment(run["finished_at"]),
                run["cluster_name"] or run["nodes"],
                run["mode"] if run["is_whole"] or run["mode"] == "rerun" else f"{run['mode']} of a part",
                run["verdict"],
                _count(run),
                "-" if run["mode"] == "prove" else f"{run['rows']:,}",
                f"{run['seconds']:,.1f} s",
                run["task_id"][:8],
            ]
        )
    lines = [f"{table} on {cluster or nodes}: {sparkline(trend)}" for (table, cluster, nodes), trend in trends.items()]
    return as_lines([*lines, *aligned(rows)])


def _scope(run: Mapping[str, Any]) -> tuple[str, str, str]:
    return run["table_name"], run["cluster_name"], run["nodes"]


def _verdict(run: Mapping[str, Any]) -> str:
    return str(run["verdict"]) if run["is_whole"] else f"{run['verdict']} (of a part)"


def _count(run: Mapping[str, Any]) -> str:
    if run["differences"] is None or (run["verdict"] == "INCOMPLETE" and not run["differences"]):
        return "?"
    accepted = sum(counts.get("accepted", 0) for counts in run["kinds"].values())
    if accepted:
        return f"{run['differences']:,} and {accepted:,} accepted"
    return f"{run['differences']:,}{' blocks' if run['mode'] == 'check' and run['differences'] else ''}"


def _age(time: str) -> float:
    return (datetime.now(timezone.utc) - datetime.fromisoformat(time.replace("Z", "+00:00"))).total_seconds()
