"""The content of an HTML page: for a diff from its report, for other tasks from the task store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trueup.report.difflog import MEANING as PROOF
from trueup.report.extent import Extent, shown_meaning, shown_verdict
from trueup.report.text import (
    MEANING,
    certified_lines,
    engines,
    moment,
    rows_of,
    shown_kinds,
    since_proof_lines,
    until_text,
)

# Colour of the verdict. "good" (green) is only for what is proven.
Tone = Literal["good", "differ", "trouble", "plain"]

# Version of the data in a page; increased when its structure changes.
FORMAT = 1
_CONTRADICTS = "the report contradicts itself; nothing is proven"
_SETTINGS = (
    *("block_size", "compare_unit_size", "concurrency_factor", "max_connections", "max_diff_rows"),
    *("recheck", "recheck_wait", "numeric", "engine"),
)


@dataclass(frozen=True)
class Table:
    """A table; columns in `numbers` are right-aligned, and the first cell of a row may be a link."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """The content of a page without the differences, which are streamed."""

    title: str
    verdict: str
    tone: Tone
    meaning: str
    facts: Mapping[str, str]
    trouble: Sequence[str] = ()
    trouble_title: str = "Not everything was compared"
    remarks: Sequence[str] = ()
    tables: Sequence[Table] = ()
    # Collapsed at first.
    details: Sequence[Table] = ()
    # The header of the differences (None: no differences), and the name of the JSON report.
    data: Mapping[str, Any] | None = None
    report: str = ""
    task_id: str = ""


def page_of_diff(head: Mapping[str, Any], counts: Mapping[str, Mapping[str, Any]], report: str) -> Page:
    """Return the page of a diff, from the head of its report, the counts of its pairs, and the path of the report."""
    summary: Mapping[str, Any] = head["summary"]
    trouble = [str(reason) for reason in head.get("incomplete") or ()]
    verdict, mode = str(summary["verdict"]), str(summary.get("mode") or "diff")
    tone = _tone(verdict, trouble, counts.values())
    extent = Extent.from_json(summary.get("extent") or {"filter": summary.get("table_filter")})
    rows = rows_of(int(summary.get("total_rows_checked", 0)), summary.get("since_proof") or {})
    meaning = shown_meaning(MEANING.get((verdict, mode), _CONTRADICTS), verdict, mode, rows, extent)
    meaning = _CONTRADICTS if tone == "trouble" and verdict != "INCOMPLETE" else meaning
    return Page(
        title=f"{summary['schema']}.{summary['table']}",
        verdict=shown_verdict(verdict, rows, extent),
        # Green is for what is proven of the whole table.
        tone="plain" if tone == "good" and not extent.is_whole else tone,
        meaning="; ".join(filter(None, (meaning, summary.get("earlier")))),
        facts=_diff_facts(summary, counts, extent),
        trouble=trouble,
        remarks=[str(remark) for remark in head.get("remarks") or ()],
        tables=[_pair_table(counts), *_accepted_table(summary.get("accepted") or ())],
        details=[_node_table(summary, head.get("proof") or {}), *_named_tables(summary, head.get("proof") or {})],
        data={
            "format": FORMAT,
            "task": summary["task_id"],
            "schema": summary["schema"],
            "table": summary["table"],
            "nodes": list(summary["nodes"]),
            "key": list(summary["primary_key"]),
            "columns": list(summary["columns"]),
        },
        report=Path(report).name,
        task_id=str(summary["task_id"]),
    )


def page_of_task(task: Mapping[str, Any]) -> Page:
    """Return the page of a task without rows: a check, a run or a proof of a version log."""
    context = dict(task["task_context"])
    summary = dict(context.pop("diff_summary", None) or {})
    error = str(context.pop("error", ""))
    # Seeds and identities, for a certificate.
    summary.pop("proof", None)
    trouble = [str(reason) for reason in summary.pop("incomplete", None) or ()]
    trouble = trouble or ([error] if error else [])
    verdict = str(summary.pop("verdict", "") or task["task_status"])
    extent = Extent.from_json(summary.pop("extent", None))
    is_part = not extent.is_whole or any(
        not Extent.from_json(table.get("extent")).is_whole for table in _tables_of(summary)
    )
    rows = rows_of(int(summary.get("total_rows_checked", 1)), summary.get("since_proof") or {})
    meaning = shown_meaning(_task_meaning(verdict, str(task["task_type"])), verdict, "check", rows, extent)
    tone = _task_tone(verdict, trouble)
    if task["task_type"] == "TABLE_CHECK":
        # A check does not count differing rows: a 0 would be misleading.
        for name in ("diff_rows_count", "diff_row_limit_reached"):
            summary.pop(name, None)
    plain = {name: value for name, value in summary.items() if not _is_table(value)}
    took = task["time_taken"]
    return Page(
        title=f"{task['schema']}.{task['table_name']}".strip(".") or task["task_type"],
        verdict=shown_verdict(verdict, rows, extent) + " (of a part)" * (is_part and extent.is_whole),
        tone="plain" if tone == "good" and is_part else tone,
        meaning=meaning,
        facts={
            "only a part": "; ".join(extent.lines()),
            "task": _words(task["task_type"]).lower(),
            "status": str(task["task_status"]),
            "started (UTC)": moment(task["started_at"]),
            "time": "" if took is None else f"{took:,.1f} s",
        },
        trouble=trouble,
        tables=[*_named("Result", plain), *_inner_tables(summary)],
        details=_named("Request", context),
        task_id=str(task["task_id"]),
    )


def _tables_of(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tables = summary.get("tables") or ()
    return [table for table in tables if isinstance(table, Mapping)]


def _tone(verdict: str, trouble: Sequence[str], counts: Iterable[Mapping[str, Any]]) -> Tone:
    differs = any(pair_counts.get(kind) for pair_counts in counts for kind in ("missing", "extra", "changed"))
    if verdict == "MATCH" and not trouble and not differs:
        return "good"
    if verdict in ("RESOLVED", "ACCEPTED") and not trouble and not differs:
        # True for some keys, or all but the accepted ones: no proof for the table.
        return "plain"
    return "differ" if verdict == "DIFFER" and not trouble else "trouble"


def _task_tone(verdict: str, trouble: Sequence[str]) -> Tone:
    # The result of a repair is true for some keys, no proof for the table.
    if verdict in ("COMPLETED", "REPAIRED", "UNDONE", "DRY RUN") and not trouble:
        return "plain"
    return "differ" if verdict == "REMAINS" and not trouble else _tone(verdict, trouble, ())


def _task_meaning(verdict: str, kind: str) -> str:
    if kind == "DIFFLOG_PROVE":
        return PROOF.get(verdict, "")
    return MEANING.get((verdict, "check"), "") if kind == "TABLE_CHECK" else ""


def _diff_facts(summary: Mapping[str, Any], counts: Mapping[str, Mapping[str, Any]], extent: Extent) -> dict[str, str]:
    blocks, differ = summary.get("blocks", 0), summary.get("mismatched_ranges_count", 0)
    total = sum(pair_counts.get("total", 0) for pair_counts in counts.values())
    key = ", ".join(map(str, summary["primary_key"]))
    return {
        "differences" if len(counts) < 2 else "differences of all pairs": f"{total:,}",
        "rows compared": f"{summary.get('total_rows_checked', 0):,}",
        "blocks": f"{blocks:,}, {differ:,} differ",
        "nodes": ", ".join(map(str, summary["nodes"])),
        "key": key or "none: rows as a multiset",
        "since a proof": "; ".join(since_proof_lines(summary.get("since_proof") or {})),
        "certificate": "; ".join(certified_lines(summary.get("certified") or {})),
        "only a part": "; ".join(extent.lines()),
        "ended (UTC)": moment(str(summary.get("end_time", ""))),
        "time": f"{summary.get('time_taken', 0):,.1f} s",
    }


def _pair_table(counts: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    kinds = shown_kinds(counts.values())
    for pair, pair_counts in counts.items():
        numbers = [f"{pair_counts.get(kind, 0):,}" for kind in (*kinds, "total")]
        rows.append([pair, *numbers, "limit reached, more may exist" if pair_counts.get("limit_reached") else ""])
    heads = ["pair", *(_words(kind) for kind in kinds), "differences", ""]
    return Table("Pairs of nodes", heads, rows, frozenset(range(1, len(kinds) + 2)))


def _accepted_table(acceptances: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the acceptances whose differences were found."""
    rows = [
        [
            str(each["id"])[:8],
            f"{each['differences']:,}",
            str(each["reason"]),
            str(each["accepted_by"]),
            moment(str(each["accepted_at"])),
            until_text(each["until"]),
        ]
        for each in acceptances
    ]
    heads = ["acceptance", "differences", "reason", "accepted by", "accepted at (UTC)", "expires"]
    return [Table("Accepted differences", heads, rows, frozenset({1}))] if rows else []


def _node_table(summary: Mapping[str, Any], proof: Mapping[str, Any]) -> Table:
    """Return the rows of each node, and the position of its snapshot."""
    positions: Mapping[str, Mapping[str, Any]] = proof.get("nodes") or {}
    alone = summary.get("alone") or {}
    rows = []
    for node in summary["nodes"]:
        snapshot = positions.get(node) or {}
        count = (summary.get("rows") or {}).get(node)
        rows.append(
            [
                str(node),
                "" if count is None else f"{count:,}",
                str(snapshot.get("log_position") or ""),
                str(snapshot.get("transactions") or ""),
                moment(str(snapshot.get("taken_at") or "")),
                f"{snapshot.get('server_version', '')}{', a standby' if snapshot.get('in_recovery') else ''}",
                *([f"{alone.get(node, 0):,}"] if alone else []),
            ]
        )
    heads = ["node", "rows", "log position", "transactions", "snapshot taken (UTC)", "server"]
    heads += ["keys that differ from all others"] if alone else []
    return Table("Nodes and their snapshots", heads, rows, frozenset({1, 6}))


def _named_tables(summary: Mapping[str, Any], proof: Mapping[str, Any]) -> list[Table]:
    settings = {name: summary[name] for name in _SETTINGS if name in summary}
    if "engine" in settings:
        settings["engine"] = engines(str(settings["engine"]), summary.get("ran_on") or {})
    facts = {name: value for name, value in proof.items() if name != "nodes"}
    columns = ", ".join(map(str, summary["columns"]))
    return [*_named("Settings", {**settings, "columns": columns}), *_named("Proof", facts)]


def _inner_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return the nested values of a result, each as a table."""
    tables: list[Table] = []
    for name, value in result.items():
        if isinstance(value, Mapping):
            tables += _named(_words(name).capitalize(), value)
        elif _is_table(value):
            heads = list(dict.fromkeys(str(head) for entry in value for head in entry))
            rows = [[_plain(entry.get(head)) for head in heads] for entry in value]
            tables.append(Table(_words(name).capitalize(), heads, rows))
    return tables


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(entry, Mapping) for entry in value)
    return isinstance(value, Mapping)


def _named(title: str, values: Mapping[str, Any]) -> list[Table]:
    rows = [[_words(str(name)), _plain(value)] for name, value in values.items() if value not in ("", None, [], {})]
    return [Table(title, [], rows)] if rows else []


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_plain(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(f"({_plain(part)})" if isinstance(part, list | tuple) else _plain(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
