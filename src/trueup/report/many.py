"""The result of many tables: as text, as a JSON file, and as a page that links the pages of the tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.errors import StoreError
from trueup.report.html import write_html
from trueup.report.json_file import cure_for, write_private
from trueup.report.model import AGREED, ManyResult, Verdict
from trueup.report.page import Page, Table
from trueup.report.text import aligned

MEANING = {
    ("MATCH", "diff"): "all rows of these tables were compared and are equal",
    ("MATCH", "check"): "the digests of all rows of these tables agree",
    ("ACCEPTED", "diff"): "all rows of these tables were compared; they are equal except for accepted differences",
    ("ACCEPTED", "rerun"): "keys that differed have only accepted differences; no other rows were compared",
    ("DIFFER", "diff"): "the nodes differ",
    ("DIFFER", "check"): "the nodes differ",
    ("INCOMPLETE", "diff"): "not everything was compared; nothing is proven for the tables that are INCOMPLETE",
    ("RESOLVED", "rerun"): "all keys that differed agree now; no other rows were compared",
    ("DIFFER", "rerun"): "some of the keys that differed still differ",
    ("INCOMPLETE", "rerun"): "not everything was compared; nothing is proven for the tables that are INCOMPLETE",
    ("INCOMPLETE", "check"): "not everything was compared; nothing is proven for the tables that are INCOMPLETE",
}
# If only a part of a table was compared.
_PART = {
    ("MATCH", "diff"): "only a part of these tables was compared, and it is equal",
    ("MATCH", "check"): "only a part of these tables was compared, and its digests agree",
    ("ACCEPTED", "diff"): "only a part of these tables was compared; it is equal except for accepted differences",
}
# Sort order: problems first.
_RANK: dict[Verdict, int] = {"INCOMPLETE": 0, "DIFFER": 1, "ACCEPTED": 2, "RESOLVED": 3, "MATCH": 4}
_HEADS = ("TABLE", "VERDICT", "ROWS", "DIFFERENCES", "TIME", "")
_TONES: dict[str, Any] = {"MATCH": "good", "DIFFER": "differ", "RESOLVED": "plain", "ACCEPTED": "plain"}


def summary_of(result: ManyResult) -> dict[str, Any]:
    """Return the result for the task store."""
    counts = Counter(table.verdict for table in result.tables)
    return {
        "verdict": result.verdict,
        "mode": result.mode,
        **({"rerun_of": result.rerun_of} if result.rerun_of else {}),
        "nodes": list(result.nodes),
        **{verdict.lower(): counts[verdict] for verdict in _RANK},
        "tables": [asdict(table) for table in result.tables],
        "skipped": list(result.skipped),
        "remarks": list(result.remarks),
        "time_taken": result.seconds,
        "report": result.report,
        "page": result.page,
    }


def folder_of_run(report_dir: str, kind: str, task_id: str) -> Path:
    """Create the folder for the reports of all tables of a run, and return it."""
    folder = Path(report_dir or ".").absolute() / f"tables_{kind}-{task_id[:8]}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the folder {folder}: {error.strerror}", cure=cure_for(error)) from None
    return folder


def write_many(folder: Path, result: ManyResult, *, html: bool) -> ManyResult:
    """Write the summary next to the reports of the tables, and the page; return the result with their paths."""
    path, page = folder / "summary.json", folder / "index.html"
    result = replace(result, report=str(path), page=str(page) if html else "")
    write_private(path, json.dumps(result.as_json(), indent=1) + "\n")
    if not html:
        return result
    try:
        write_html(page, page_of_many(summary_of(result), result.task_id))
    except StoreError as error:
        # The summary has been written, so the result is complete.
        return replace(result, page="", remarks=(*result.remarks, f"the page could not be written: {error}"))
    return result


def many_text(summary: Mapping[str, Any], task_id: str) -> str:
    """Return the result as text: the verdict, one line per table, the next step."""
    tables = sorted(summary["tables"], key=lambda table: (_RANK[table["verdict"]], table["table"]))
    verdict, meaning = _headline(summary)
    count = counted(len(tables), "table")
    lines = [f"{verdict}: {count} on {', '.join(summary['nodes'])}: {meaning}", ""]
    rows = [_cells(table, summary["mode"]) for table in tables]
    lines += [f"  {line}" for line in aligned([list(_HEADS), *rows], right={2, 3, 4})]
    counts = ", ".join(f"{summary[verdict.lower()]:,} {verdict}" for verdict in _RANK if summary[verdict.lower()])
    checked = sum(table["rows_checked"] for table in tables)
    lines += ["", f"  {counts}; {counted(checked, 'row')}, {summary['time_taken']:.1f} s"]
    lines += [f"  excluded: {', '.join(summary['skipped'])}"] if summary["skipped"] else []
    certificates = Counter(table["certificate"] for table in tables if table.get("certificate"))
    lines += [f"  {counted(number, 'table')}: {text}" for text, number in certificates.most_common()]
    lines += [f"  note: {remark}" for remark in summary["remarks"]]
    lines += [f"  {name}: {summary[name]}" for name in ("report", "page") if summary.get(name)]
    lines.append(f"  next: {_next(summary, tables, task_id)}")
    return as_lines(lines)


def _headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict with what it is about, and what it means."""
    verdict, mode, tables = str(summary["verdict"]), summary["mode"], summary["tables"]
    meaning = MEANING[verdict, mode]
    if (verdict, mode) not in _PART:
        return verdict, f"{meaning}{_earlier(tables)}"
    is_part = any(table.get("part") for table in tables)
    is_empty = all(table.get("is_empty") for table in tables)
    shown = f"{verdict}{' of 0 rows' * is_empty}{' (of a part)' * is_part}"
    if is_empty:
        return shown, "no row was selected in any of these tables" if is_part else "these tables are empty on all nodes"
    return shown, f"{_PART[verdict, mode] if is_part else meaning}{_earlier(tables)}"


def _earlier(tables: Sequence[Mapping[str, Any]]) -> str:
    """Return how many tables were read at an earlier moment, before the run was resumed."""
    earlier = sum(bool(table.get("earlier")) for table in tables)
    return f"; {counted(earlier, 'table')} at an earlier moment, see below" if earlier else ""


def page_of_many(summary: Mapping[str, Any], task_id: str) -> Page:
    """Return the page: one line per table, with a link to its page."""
    tables = sorted(summary["tables"], key=lambda table: (_RANK[table["verdict"]], table["table"]))
    verdict, meaning = _headline(summary)
    rows = [_cells(table, summary["mode"]) for table in tables]
    links = [quote(Path(table["page"]).name) if table["page"] else "" for table in tables]
    heads = [head.lower() for head in _HEADS]
    return Page(
        title=counted(len(tables), "table"),
        verdict=verdict,
        tone="plain" if "(of a part)" in verdict else _TONES.get(str(summary["verdict"]), "trouble"),
        meaning=meaning,
        facts={
            "nodes": ", ".join(summary["nodes"]),
            **{name.lower(): f"{summary[name.lower()]:,}" for name in _RANK if summary.get(name.lower()) is not None},
            "rows compared": f"{sum(table['rows_checked'] for table in tables):,}",
            "excluded": ", ".join(summary["skipped"]),
            "time": f"{summary['time_taken']:,.1f} s",
        },
        trouble=[f"{table['table']}: {table['reason']}" for table in tables if table["verdict"] == "INCOMPLETE"],
        remarks=list(summary["remarks"]),
        tables=[Table("Tables", heads, rows, frozenset({2, 3, 4}), links)],
        report=Path(summary["report"]).name if summary.get("report") else "",
        task_id=task_id,
    )


def _cells(table: Mapping[str, Any], mode: str) -> list[str]:
    notes = [f"missing on {', '.join(table['missing_on'])}"] if table["missing_on"] else []
    notes += ["no rows"] if table.get("is_empty") else []
    notes += [table["part"]] if table.get("part") else []
    notes += [f"{table['accepted']:,} accepted"] if table.get("accepted") else []
    notes += [table["earlier"]] if table.get("earlier") else []
    notes += [table["reason"]] if table["reason"] else []
    if table["differences"]:
        amount = f"{table['differences']:,}" + (" blocks" if mode == "check" else "")
    else:
        amount = "-" if table["verdict"] == "INCOMPLETE" or not table["task_id"] else "0"
    return [
        table["table"],
        table["verdict"],
        f"{table['rows_checked']:,}" if table["task_id"] else "-",
        amount,
        f"{table['seconds']:.1f} s" if table["task_id"] else "-",
        "; ".join(notes),
    ]


def _next(summary: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], task_id: str) -> str:
    if summary["verdict"] in AGREED and any(table.get("part") for table in tables):
        return f"trueup tasks show {task_id[:8]}  (has the details)"
    if summary["verdict"] in AGREED:
        return f"nothing to do (trueup tasks show {task_id[:8]} has the details)"
    if summary["verdict"] == "INCOMPLETE":
        again = f"trueup {summary['mode']} --resume {task_id[:8]}"
        if summary["mode"] == "rerun":
            return "fix the problems listed above, then run a new diff"
        return f"fix the problems listed above, then: {again}  (compares the rest only)"
    if summary.get("page"):
        return "open the page in a browser"
    first = next((table for table in tables if table["verdict"] == "DIFFER" and table["task_id"]), None)
    if first is None:
        return "trueup schema-diff  (shows which objects are missing)"
    if summary["mode"] == "check":
        return f"trueup diff {first['table']}  (shows which rows differ)"
    return f"trueup repair {task_id[:8]} --source-of-truth NODE  (shows what would be written to all tables)"
