"""The summary for people: verdict first, then what was counted, then what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.report.model import DiffResult

_MEANING = {
    "MATCH": "all rows were compared and are equal",
    "DIFFER": "the nodes differ",
    "INCOMPLETE": "not everything was compared; nothing is proven",
}
_MOST_REASONS = 10


def summary(result: DiffResult) -> str:
    """The result in a few lines."""
    lines = [f"{result.verdict}: {result.table} on {', '.join(result.nodes)}: {_MEANING[result.verdict]}"]
    rate = f" ({result.rows_checked / result.seconds:,.0f} rows/s)" if result.seconds else ""
    lines.append(
        f"  {result.rows_checked:,} rows in {result.blocks:,} blocks, {result.mismatched_blocks:,} of them differ;"
        f" {result.seconds:.1f} s{rate}, engine {result.engine}"
    )
    if result.mode == "diff":
        lines += _pair_lines(result)
    lines += [f"  note: {remark}" for remark in result.remarks]
    lines += [f"  not compared: {reason}" for reason in result.incomplete[:_MOST_REASONS]]
    if len(result.incomplete) > _MOST_REASONS:
        lines.append(f"  … and {len(result.incomplete) - _MOST_REASONS} more, see the report")
    if result.report:
        lines.append(f"  report: {result.report}")
    lines.append(f"  next: {_next(result)}")
    return "\n".join(lines)


def _pair_lines(result: DiffResult) -> list[str]:
    lines = []
    for pair, counts in result.pairs.items():
        flight = f", {counts.in_flight:,} in flight" if counts.in_flight else ""
        limit = " (limit reached, more may exist)" if counts.limit_reached else ""
        lines.append(
            f"  {pair}: {counts.missing:,} missing, {counts.extra:,} extra, {counts.changed:,} changed{flight}{limit}"
        )
    alone = [f"{node} with {keys:,}" for node, keys in result.alone.items() if keys]
    if alone:
        lines.append(f"  stands alone: {', '.join(alone)} keys")
    return lines


def _next(result: DiffResult) -> str:
    if result.verdict == "MATCH":
        return f"nothing to do (trueup tasks show {result.task_id[:8]} has the details)"
    if result.verdict == "INCOMPLETE":
        return "mend what is named and run again"
    if result.mode == "check":
        return f"trueup diff {result.table}  (shows which rows differ)"
    return f"trueup report {result.task_id[:8]} --output html  (shows the rows)"


def report_text(report: Mapping[str, Any], *, most: int = 20) -> str:
    """A report read back from its file: the summary and the first differences of each pair."""
    summary = report["summary"]
    lines = [f"{summary['verdict']}: {summary['schema']}.{summary['table']} on {', '.join(summary['nodes'])}"]
    lines.append(
        f"  {summary['total_rows_checked']:,} rows in {summary['blocks']:,} blocks,"
        f" {summary['mismatched_ranges_count']:,} of them differ; {summary['end_time']}, {summary['time_taken']} s"
    )
    lines += [f"  not compared: {reason}" for reason in report["incomplete"]]
    for pair, found in report["diffs"].items():
        lines.append(f"  {pair}: {found['missing']:,} missing, {found['extra']:,} extra, {found['changed']:,} changed")
        lines += [_difference(each) for each in found["differences"][:most]]
        if len(found["differences"]) > most:
            lines.append(f"    … and {len(found['differences']) - most:,} more")
    return "\n".join(lines)


def _difference(each: Mapping[str, Any]) -> str:
    key = ", ".join(f"{name}={value}" for name, value in each["key"].items())
    changes = [
        f"{column}: {' -> '.join(_value(row[column]) for row in each['rows'].values())}" for column in each["columns"]
    ]
    return f"    {each['kind']:<8} {key}" + (f"  {'; '.join(changes)}" if changes else "")


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        return f"{value['length']:,} bytes, sha256 {value['sha256'][:12]}…"
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "…")
