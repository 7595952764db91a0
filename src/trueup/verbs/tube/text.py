"""Tubes, statistics, backfills and dead letters as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.capture.triggers.model import Attached, Backfill, Stats, TubeInfo
from trueup.capture.triggers.problems import Problem
from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.verbs.tube.letters import Letter


def tubes_text(tubes: Sequence[TubeInfo]) -> str:
    """Return one line per tube, and one line per table below it."""
    if not tubes:
        return "no tubes; create one with trueup tube ensure NAME"
    lines: list[str] = []
    for tube in tubes:
        facts = [counted(tube.partitions, "partition")]
        facts += [f"predicate {tube.predicate}"] if tube.predicate else []
        lines.append(f"{tube.tube}: {', '.join(facts)}")
        lines += [f"  {table_text(table)}" for table in tube.tables] or ["  no tables"]
    return as_lines(lines)


def table_text(table: Attached) -> str:
    """Return the settings of an attached table, and its problem if there is one."""
    facts = [f"shard {table.shard}" if table.routing is None else f"routing {table.routing}"]
    facts.append(f"key {', '.join(table.key)}")
    facts += [f"predicate {table.predicate}"] if table.predicate else []
    facts += ["each row"] if table.capture == "row" else []
    problem = f"; PROBLEM: {table.problem}" if table.problem else ""
    return f"{table.table}: {', '.join(facts)}{problem}"


_HEADS = (
    "tube",
    "part",
    "live pods",
    "keys",
    "oldest",
    "backfill pods",
    "keys",
    "control",
    "troubles",
    "dead",
    "keys/s",
    "shards",
    "size",
)
_BAR = 24
_SILENCE_S = 30.0


def stats_text(stats: Sequence[Stats], backfills: Sequence[Backfill], problems: Sequence[Problem] = ()) -> str:
    """Return the statistics as a table, the problems of attached tables, and the progress of the backfills."""
    if not stats:
        return "no tubes; create one with trueup tube ensure NAME"
    rows = [_HEADS, *map(_row, stats)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines += [f"{row.tube}/{row.partition} is waiting: {row.waiting}" for row in stats if row.waiting]
    lines += [f"{row.tube}/{row.partition} runs on {_engine(row.engine)}" for row in stats if row.engine]
    lines += [f"PROBLEM of {problem.tube}: {problem}" for problem in problems]
    return as_lines([*lines, *(f"backfill {backfill_text(row)}{_progress(row)}" for row in backfills)])


def _row(stats: Stats) -> tuple[str, ...]:
    return (
        stats.tube,
        str(stats.partition),
        f"{stats.live_pods:,}",
        f"{stats.live_keys:,}",
        "-" if stats.oldest_live_s is None else f"{stats.oldest_live_s:,.1f} s",
        f"{stats.backfill_pods:,}",
        f"{stats.backfill_keys:,}",
        f"{stats.control_pods:,}",
        f"{stats.troubles:,}",
        f"{stats.dead_letters:,}",
        _rate(stats),
        f"{stats.shards:,}",
        f"{stats.bytes / 1_048_576:,.1f} MB" if stats.partition == 0 else "",
    )


def _rate(stats: Stats) -> str:
    """Return the rate of the current worker; a dash without a worker, or without a recent heartbeat."""
    is_alive = stats.worker is not None and stats.worker_seen_s is not None and stats.worker_seen_s < _SILENCE_S
    return f"{stats.keys_per_second:,.0f}" if is_alive else "-"


def _engine(engine: dict[str, Any]) -> str:
    """Return what the worker runs on: threads, or Spark with its progress."""
    if engine["name"] != "spark":
        return f"threads: {engine['problem']}" if "problem" in engine else "threads"
    return (
        f"Spark: {engine['batches']:,} batches, {counted(engine['jobs'], 'job')}; last batch"
        f" {counted(engine['batch_keys'], 'key')} in {engine['batch_seconds']:.2f} s"
        f" ({engine['input_per_second']:,} keys/s)"
    )


def _progress(backfill: Backfill) -> str:
    """Return a progress bar for an unfinished backfill: the share of keys that were put in the tube and delivered."""
    total = max(backfill.keys if backfill.finished_at else max(backfill.keys, backfill.rows), 1)
    if backfill.finished_at and not backfill.waiting_keys:
        return ""
    share = max(0.0, min(1.0, (backfill.keys - backfill.waiting_keys) / total))
    # 100 % is reserved for finished backfills.
    share = min(share, 0.99)
    filled = int(share * _BAR)
    return f"  [{'#' * filled}{'-' * (_BAR - filled)}] {share:.0%}, {counted(backfill.waiting_keys, 'key')} waiting"


def backfill_text(backfill: Backfill) -> str:
    """Return table, shard, progress and state of a backfill."""
    state = f"finished {backfill.finished_at:%Y-%m-%d %H:%M:%S} UTC" if backfill.finished_at else "not finished"
    shard = "all shards" if backfill.shard is None else f"shard {backfill.shard}"
    counts = f"{counted(backfill.keys, 'key')} in {counted(backfill.pods, 'pod')}"
    return f"{backfill.tube} {backfill.table} ({shard}): {counts}, {state}"


def letters_text(letters: Sequence[Letter]) -> str:
    """Return two lines per dead letter: its key and state, and the error."""
    if not letters:
        return "no dead letters"
    lines: list[str] = []
    for letter in letters:
        state = "parked" if letter.next_at is None else f"next attempt at {letter.next_at:%H:%M:%S} UTC"
        lines.append(
            f"{letter.table or letter.source} {letter.key} (shard {letter.shard}): {letter.attempts} attempts,"
            f" last {letter.last_at:%Y-%m-%d %H:%M:%S} UTC, {state}"
        )
        lines.append(f"    {letter.error}")
    return as_lines(lines)
