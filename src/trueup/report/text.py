"""Results and tasks as text: the verdict, the counts, the next step."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from trueup.config.visible import as_lines, one_line
from trueup.config.wording import counted
from trueup.report.extent import Extent, shown_meaning, shown_verdict
from trueup.report.model import AGREED, DiffResult

if TYPE_CHECKING:
    from trueup.report.json_reader import Report

MEANING = {
    ("MATCH", "diff"): "all rows were compared and are equal",
    ("MATCH", "check"): "the digests of all rows agree",
    ("ACCEPTED", "diff"): "all rows were compared; they are equal except for accepted differences",
    ("DIFFER", "diff"): "the nodes differ",
    ("DIFFER", "check"): "the nodes differ",
    ("INCOMPLETE", "diff"): "not everything was compared; nothing is proven",
    ("INCOMPLETE", "check"): "not everything was compared; nothing is proven",
    ("RESOLVED", "rerun"): "all keys of the earlier report are equal now; no other rows were compared",
    ("ACCEPTED", "rerun"): "keys of the earlier report have only accepted differences; no other rows were compared",
    ("DIFFER", "rerun"): "keys of the earlier report differ; no other rows were compared",
    ("INCOMPLETE", "rerun"): "not all differences were compared again; nothing is proven",
}
_MAX_REASONS = 10
KINDS = ("missing", "extra", "changed", "in_flight")
# Shown only if there are some.
_MORE_KINDS = ("hot", "accepted")


def shown_kinds(pairs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the kinds of which the counts are shown; hot and accepted rows only if there are some."""
    listed = list(pairs)
    return (*KINDS, *(kind for kind in _MORE_KINDS if any(counts.get(kind) for counts in listed)))


def engines(engine: str, ran_on: Mapping[str, int]) -> str:
    """Return the engine; of two engines, also the share of the blocks or parts of each."""
    if len(ran_on) < 2:
        return engine
    shares = [f"{name} {blocks / sum(ran_on.values()):.1%}" for name, blocks in ran_on.items()]
    return f"{engine} ({', '.join(shares)})"


def summary(result: DiffResult) -> str:
    """Return the result of a diff, a check or a rerun."""
    extent, rows = result.extent, rows_of(result.rows_checked, result.since_proof)
    verdict = shown_verdict(result.verdict, rows, extent)
    meaning = shown_meaning(MEANING[result.verdict, result.mode], result.verdict, result.mode, rows, extent)
    meaning = "; ".join(filter(None, (meaning, result.earlier)))
    lines = [f"{verdict}: {result.table} on {', '.join(result.nodes)}: {meaning}"]
    lines += [f"  {line}" for line in extent.lines()]
    rate = f" ({result.rows_checked / result.seconds:,.0f} rows/s)" if result.seconds else ""
    checked = _checked(result.rows_checked, result.blocks, result.mismatched_blocks)
    if result.mode == "rerun":
        checked = f"{counted(result.rows_checked, 'key')} of {result.rerun_of}"
    lines.append(f"  {checked}; {result.seconds:.1f} s{rate}, engine {engines(result.engine, result.ran_on)}")
    lines += [f"  {line}" for line in since_proof_lines(result.since_proof)]
    lines += [f"  {line}" for line in certified_lines(result.certified)]
    lines += [
        f"  {pair}: {counts['resolved']:,} resolved, {counts['remains']:,} remain, {counts['new']:,} new"
        for pair, counts in result.since.items()
    ]
    if result.mode != "check":
        lines += _pair_table({pair: vars(counts) for pair, counts in result.pairs.items()})
    alone = [f"{node} with {counted(keys, 'key')}" for node, keys in result.alone.items() if keys]
    if alone:
        lines.append(f"  differs from all others: {', '.join(alone)}")
    lines += [f"  {line}" for line in accepted_lines(result.accepted)]
    lines += [f"  note: {remark}" for remark in result.remarks]
    lines += [f"  not compared: {reason}" for reason in result.incomplete[:_MAX_REASONS]]
    if len(result.incomplete) > _MAX_REASONS:
        where = "the report" if result.report else f"trueup tasks show {result.task_id[:8]}"
        lines.append(f"  … and {len(result.incomplete) - _MAX_REASONS} more, see {where}")
    if result.report:
        lines.append(f"  report: {result.report}")
    if result.page:
        lines.append(f"  page: {result.page}")
    if result.parquet:
        lines.append(f"  differences: {result.parquet}")
    lines.append(f"  next: {_next(result)}")
    return as_lines(lines)


def rows_of(checked: int, since: Mapping[str, Any]) -> int:
    """Return the number of rows that a verdict is about: those that were read, and those of a certificate."""
    return checked + int(since.get("proven_rows") or 0)


def since_proof_lines(since: Mapping[str, Any]) -> list[str]:
    """Return what was taken from a certificate, or why nothing was."""
    if not since:
        return []
    if since["reason"]:
        return [f"all rows were read, none taken from the certificate: {since['reason']}"]
    proven = f"{counted(since['proven_blocks'], 'block')} ({counted(since['proven_rows'], 'row')})"
    return [
        f"{proven} proven at {moment(since['proven_at'])} UTC by the validation {since['validation']}, not read now;"
        f" {counted(since['blocks_now'], 'block')} now"
    ]


def certified_lines(certified: Mapping[str, str]) -> list[str]:
    """Return in which validation a certificate was recorded, or why it was not."""
    if not certified:
        return []
    if certified["reason"]:
        return [f"no certificate was recorded: {certified['reason']}"]
    return [f"recorded as certificate of the validation {certified['validation']}"]


def accepted_lines(acceptances: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line per acceptance whose differences were found: how many, why, by whom, until when."""
    return [
        f"accepted: {counted(each['differences'], 'difference')}: {each['reason']} (by {each['accepted_by']},"
        f" {until_text(each['until'])}, acceptance {each['id'][:8]})"
        for each in acceptances
    ]


def until_text(until: str | None) -> str:
    """Return when an acceptance expires."""
    return f"until {moment(until)} UTC" if until else "does not expire"


def report_text(report: Report, *, limit: int = 20) -> str:
    """Return the summary of a report, and some differences of each pair and kind."""
    head = report.head
    summary = head["summary"]
    extent = Extent.from_json(summary.get("extent") or {"filter": summary["table_filter"]})
    rows = rows_of(summary["total_rows_checked"], summary.get("since_proof", {}))
    verdict = shown_verdict(summary["verdict"], rows, extent)
    lines = [f"{verdict}: {summary['schema']}.{summary['table']} on {', '.join(summary['nodes'])}"]
    lines += [f"  {line}" for line in extent.lines()]
    checked = _checked(summary["total_rows_checked"], summary["blocks"], summary["mismatched_ranges_count"])
    if summary.get("earlier"):
        lines[0] += f"; {summary['earlier']}"
    if summary.get("rerun_of"):
        checked = f"{counted(summary['total_rows_checked'], 'key')} of {summary['rerun_of']}"
    lines.append(f"  {checked}; {moment(summary['end_time'])}, {summary['time_taken']:.1f} s")
    lines += [f"  {line}" for line in since_proof_lines(summary.get("since_proof", {}))]
    lines += [f"  {line}" for line in certified_lines(summary.get("certified", {}))]
    lines += [f"  {line}" for line in accepted_lines(summary.get("accepted", ()))]
    lines += [f"  note: {remark}" for remark in head["remarks"]]
    lines += [f"  not compared: {reason}" for reason in head["incomplete"]]
    lines += _pair_table(report.counts)
    for section in report.sections:
        some = report.some(section, limit)
        if some:
            lines += ["", f"  {section.pair}:", *difference_lines(some)]
        more = sum(section.listed.values()) - len(some)
        if more:
            lines.append(f"    … and {more:,} more (--output json or html has them)")
        known = list(islice(report.accepted(section), limit))
        if known:
            lines += ["", f"  {section.pair}, accepted:", *difference_lines(known)]
        if section.accepted > len(known):
            lines.append(f"    … and {section.accepted - len(known):,} more (--output json has them)")
    return as_lines(lines)


def task_table(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Return the tasks as a table, one per line."""
    rows = [
        [
            task["task_id"][:8],
            moment(task["started_at"]),
            task["task_type"],
            task["task_status"],
            task["task_context"].get("diff_summary", {}).get("verdict", "-"),
            "-" if task["time_taken"] is None else f"{task['time_taken']:.1f} s",
            f"{task['schema']}.{task['table_name']}".strip("."),
            task["cluster_name"] or str(task["task_context"].get("nodes", "")),
        ]
        for task in tasks
    ]
    heads = ["ID", "STARTED (UTC)", "TYPE", "STATUS", "VERDICT", "TIME", "TABLE", "NODES"]
    return as_lines(aligned([heads, *rows], right={heads.index("TIME")}))


def task_text(task: Mapping[str, Any]) -> str:
    """Return one task: its end, its request, its result."""
    context = dict(task["task_context"])
    result, error = context.pop("diff_summary", {}), context.pop("error", "")
    took = "" if task["time_taken"] is None else f" ({task['time_taken']:.1f} s)"
    head = {
        "task": task["task_id"],
        "type": task["task_type"],
        "status": task["task_status"],
        "verdict": result.get("verdict", ""),
        "error": error,
        "table": f"{task['schema']}.{task['table_name']}".strip("."),
        "cluster": task["cluster_name"],
        "report": task["diff_file_path"],
        "started": moment(task["started_at"]),
        "finished": moment(task["finished_at"]) + took if task["finished_at"] else "",
        "process": f"{task['pid']} on {task['host']}",
    }
    # Omit from the result what the head or the request shows already.
    known = {
        "verdict",
        "task_id",
        "proof",
        "schema",
        "table",
        "cluster",
        "start_time",
        "end_time",
        "time_taken",
        *context,
    }
    answer = {name: value for name, value in result.items() if name not in known}
    lines = _named(head)
    for title, part in (("request", context), ("result", answer), ("progress", task["progress"])):
        if part:
            lines += ["", f"{title}:", *("  " + line for line in _named(part))]
    return as_lines(lines)


def _checked(rows: int, blocks: int, mismatched: int) -> str:
    differ = "none differs" if not mismatched else f"{mismatched:,} differ{'s' * (mismatched == 1)}"
    return f"{counted(rows, 'row')} in {counted(blocks, 'block')}, {differ}"


def _pair_table(pairs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the counts of all pairs as a table, with an explanation of `missing` and `extra`."""
    kinds = shown_kinds(pairs.values())
    rows = [["", *(kind.replace("_", " ") for kind in kinds), ""]]
    for pair, counts in pairs.items():
        limit = "limit reached, more may exist" if counts["limit_reached"] else ""
        rows.append([pair, *(f"{counts[kind]:,}" for kind in kinds), limit])
    lines = ["  " + line for line in aligned(rows, right={1, 2, 3, 4, 5, 6})]
    if any(counts["missing"] or counts["extra"] for counts in pairs.values()):
        lines.append("  (missing: on the first node of the pair only; extra: on the second only)")
    return lines


def _next(result: DiffResult) -> str:
    if result.verdict in AGREED and not result.extent.is_whole:
        return f"trueup tasks show {result.task_id[:8]}  (has the details)"
    if result.verdict in AGREED:
        return f"nothing to do (trueup tasks show {result.task_id[:8]} has the details)"
    if result.verdict == "INCOMPLETE":
        if len(result.incomplete) == sum(counts.hot > 0 for counts in result.pairs.values()):
            return f"trueup rerun {result.task_id[:8]}  (compares these rows again)"
        if not rows_of(result.rows_checked, result.since_proof) and not result.extent.has_all_rows:
            return "correct the filter, or allow that no row is selected with --no-require-rows"
        if result.mode == "rerun":
            return "fix the problems listed above and run again"
        return f"fix the problems listed above, then continue with: trueup {result.mode} --resume {result.task_id[:8]}"
    if result.mode == "check":
        return f"trueup diff {_shell(result.table)}  (shows which rows differ)"
    if result.page:
        return "open the page in a browser  (shows the rows)"
    return f"trueup report {result.task_id[:8]} --output html  (shows the rows)"


def _shell(text: str) -> str:
    return shlex.quote(text)


def difference_lines(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return differences as aligned lines: kind, key, changed columns."""
    rows = []
    for difference in differences:
        changes = [
            f"{column}: {' -> '.join(_value(row[column]) for row in difference['rows'].values())}"
            for column in difference["columns"]
        ]
        if difference.get("copies"):
            row: Mapping[str, Any] = next((row for row in difference["rows"].values() if row is not None), {})
            changes = [f"{name}: {_value(value)}" for name, value in row.items()]
            changes.append("copies: " + " -> ".join(str(copies) for copies in difference["copies"].values()))
        key = ", ".join(f"{name}={_key(value)}" for name, value in difference["key"].items())
        rows.append([difference["kind"] + ", hot" * bool(difference.get("hot")), key, "; ".join(changes)])
    return ["    " + line for line in aligned(rows)]


def _key(value: Any) -> str:
    """Return a key as it is, or quoted if it is ambiguous or contains control characters."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(" ,='\"") else _value(value)


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Mapping):
        return f"{value['length']:,} bytes, sha256 {value['sha256'][:12]}…"
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "…")


def moment(text: str) -> str:
    """Return `2025-07-22T12:03:51.042Z` as `2025-07-22 12:03:51`."""
    return text[:19].replace("T", " ")


def aligned(rows: Sequence[Sequence[str]], right: frozenset[int] | set[int] = frozenset()) -> list[str]:
    """Return rows of equal length as lines with aligned columns; those in `right` are right-aligned."""
    shown = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[number]) for row in shown) for number in range(len(shown[0]))]
    lines = []
    for row in shown:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _named(values: Mapping[str, Any]) -> list[str]:
    """Return `name  value` lines without empty values."""
    shown = {name: value for name, value in values.items() if value not in ("", None, [], {})}
    width = max((len(name) for name in shown), default=0)
    lines = []
    for name, value in shown.items():
        text = value if isinstance(value, str) else _flat(value)
        first, *more = text.splitlines() or [""]
        lines.append(f"{name:<{width}}  {first}")
        lines += [" " * (width + 2) + line for line in more]
    return lines


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return json.dumps(value)
