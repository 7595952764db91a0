"""The result of many tables: as text, as a JSON file, and as a page that links the pages of the tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trueup.errors import StoreError
from trueup.report.html import write_html
from trueup.report.json_file import write_private
from trueup.report.model import ManyResult, Verdict
from trueup.report.page import Page, Table
from trueup.report.text import aligned

MEANING = {
    ("MATCH", "diff"): "all rows of all tables were compared and are equal",
    ("MATCH", "check"): "the digests of all rows of all tables agree",
    ("DIFFER", "diff"): "the nodes differ",
    ("DIFFER", "check"): "the nodes differ",
    ("INCOMPLETE", "diff"): "not everything was compared; nothing is proven for the tables that are INCOMPLETE",
    ("INCOMPLETE", "check"): "not everything was compared; nothing is proven for the tables that are INCOMPLETE",
}
# Sort order: problems first.
_RANK: dict[Verdict, int] = {"INCOMPLETE": 0, "DIFFER": 1, "MATCH": 2}
_HEADS = ("TABLE", "VERDICT", "ROWS", "DIFFERENCES", "TIME", "")
_TONES: dict[str, Any] = {"MATCH": "good", "DIFFER": "differ"}


def summary_of(result: ManyResult) -> dict[str, Any]:
    """Return the result for the task store."""
    counts = Counter(each.verdict for each in result.tables)
    return {
        "verdict": result.verdict,
        "mode": result.mode,
        "nodes": list(result.nodes),
        **{verdict.lower(): counts[verdict] for verdict in _RANK},
        "tables": [asdict(each) for each in result.tables],
        "skipped": list(result.skipped),
        "remarks": list(result.remarks),
        "time_taken": result.seconds,
        "report": result.report,
        "page": result.page,
    }


def write_many(folder: Path, result: ManyResult, *, html: bool) -> ManyResult:
    """Write the summary next to the reports of the tables, and the page; return the result with their paths."""
    path, page = folder / "summary.json", folder / "index.html"
    whole = replace(result, report=str(path), page=str(page) if html else "")
    write_private(path, json.dumps(whole.as_json(), indent=1) + "\n")
    if not html:
        return whole
    try:
        write_html(page, page_of_many(summary_of(whole), whole.task_id))
    except StoreError as error:
        # The summary has been written, so the result is complete.
        return replace(whole, page="", remarks=(*whole.remarks, f"the page could not be written: {error}"))
    return whole


def many_text(found: Mapping[str, Any], task_id: str) -> str:
    """Return the result as text: the verdict, one line per table, the next step."""
    tables = sorted(found["tables"], key=lambda each: (_RANK[each["verdict"]], each["table"]))
    meaning = MEANING[found["verdict"], found["mode"]]
    count = f"{len(tables):,} table{'s' * (len(tables) != 1)}"
    lines = [f"{found['verdict']}: {count} on {', '.join(found['nodes'])}: {meaning}", ""]
    rows = [_cells(each, found["mode"]) for each in tables]
    lines += [f"  {line}" for line in aligned([list(_HEADS), *rows], right={2, 3, 4})]
    counts = ", ".join(f"{found[verdict.lower()]:,} {verdict}" for verdict in _RANK if found[verdict.lower()])
    checked = sum(each["rows_checked"] for each in tables)
    lines += ["", f"  {counts}; {checked:,} rows, {found['time_taken']:.1f} s"]
    lines += [f"  excluded: {', '.join(found['skipped'])}"] if found["skipped"] else []
    lines += [f"  note: {remark}" for remark in found["remarks"]]
    lines += [f"  {name}: {found[name]}" for name in ("report", "page") if found.get(name)]
    lines.append(f"  next: {_next(found, tables, task_id)}")
    return "\n".join(lines)


def page_of_many(found: Mapping[str, Any], task_id: str) -> Page:
    """Return the page: one line per table, with a link to its page."""
    tables = sorted(found["tables"], key=lambda each: (_RANK[each["verdict"]], each["table"]))
    verdict = str(found["verdict"])
    rows = [_cells(each, found["mode"]) for each in tables]
    links = [quote(Path(each["page"]).name) if each["page"] else "" for each in tables]
    heads = [head.lower() for head in _HEADS]
    return Page(
        title=f"{len(tables):,} tables",
        verdict=verdict,
        tone=_TONES.get(verdict, "trouble"),
        meaning=MEANING[verdict, found["mode"]],
        facts={
            "nodes": ", ".join(found["nodes"]),
            **{name.lower(): f"{found[name.lower()]:,}" for name in _RANK},
            "rows compared": f"{sum(each['rows_checked'] for each in tables):,}",
            "excluded": ", ".join(found["skipped"]),
            "time": f"{found['time_taken']:,.1f} s",
        },
        trouble=[f"{each['table']}: {each['reason']}" for each in tables if each["verdict"] == "INCOMPLETE"],
        remarks=list(found["remarks"]),
        tables=[Table("Tables", heads, rows, frozenset({2, 3, 4}), links)],
        report=Path(found["report"]).name if found.get("report") else "",
        task_id=task_id,
    )


def _cells(each: Mapping[str, Any], mode: str) -> list[str]:
    notes = [f"missing on {', '.join(each['missing_on'])}"] if each["missing_on"] else []
    notes += [each["reason"]] if each["reason"] else []
    if each["differences"]:
        amount = f"{each['differences']:,}" + (" blocks" if mode == "check" else "")
    else:
        amount = "-" if each["verdict"] == "INCOMPLETE" or not each["task_id"] else "0"
    return [
        each["table"],
        each["verdict"],
        f"{each['rows_checked']:,}" if each["task_id"] else "-",
        amount,
        f"{each['seconds']:.1f} s" if each["task_id"] else "-",
        "; ".join(notes),
    ]


def _next(found: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], task_id: str) -> str:
    if found["verdict"] == "MATCH":
        return f"nothing to do (trueup tasks show {task_id[:8]} has the details)"
    if found["verdict"] == "INCOMPLETE":
        again = f"trueup {found['mode']} --resume {task_id[:8]}"
        return f"fix the problems listed above, then: {again}  (compares the rest only)"
    if found.get("page"):
        return "open the page in a browser"
    first = next((each for each in tables if each["verdict"] == "DIFFER" and each["task_id"]), None)
    if first is None:
        return "trueup schema-diff  (shows which objects are missing)"
    if found["mode"] == "check":
        return f"trueup diff {first['table']}  (shows which rows differ)"
    return f"trueup report {first['task_id'][:8]} --output html  (shows the rows of {first['table']})"
