"""Tubes, and what waits in them, for people."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.capture.triggers.model import Attached, Backfill, Stats, TubeInfo
from trueup.verbs.tube.letters import Letter


def tubes_text(tubes: Sequence[TubeInfo]) -> str:
    """A line for each tube, and one below it for each table."""
    if not tubes:
        return "no tubes; make one: trueup tube ensure NAME"
    lines: list[str] = []
    for tube in tubes:
        facts = [f"{tube.partitions} partition{'s' * (tube.partitions > 1)}"]
        facts += [f"predicate {tube.predicate}"] if tube.predicate else []
        lines.append(f"{tube.tube}: {', '.join(facts)}")
        lines += [f"  {table_text(each)}" for each in tube.tables] or ["  no tables"]
    return "\n".join(lines)


def table_text(table: Attached) -> str:
    """A table, how it is attached, and what is wrong with it."""
    facts = [f"shard {table.shard}" if table.routing is None else f"routing {table.routing}"]
    facts.append(f"key {', '.join(table.key)}")
    facts += [f"predicate {table.predicate}"] if table.predicate else []
    facts += ["each row"] if table.capture == "row" else []
    problem = f"\n    PROBLEM: {table.problem}" if table.problem else ""
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


def stats_text(stats: Sequence[Stats], backfills: Sequence[Backfill]) -> str:
    """A table of what waits, and where backfills are."""
    if not stats:
        return "no tubes; make one: trueup tube ensure NAME"
    rows = [_HEADS, *(_row(each) for each in stats)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    lines = [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines += [f"{each.tube}/{each.partition} waits: {each.waiting}" for each in stats if each.waiting]
    return "\n".join([*lines, *(f"backfill {backfill_text(each)}{_progress(each)}" for each in backfills)])


def _row(each: Stats) -> tuple[str, ...]:
    return (
        each.tube,
        str(each.partition),
        f"{each.live_pods:,}",
        f"{each.live_keys:,}",
        "-" if each.oldest_live_s is None else f"{each.oldest_live_s:,.1f} s",
        f"{each.backfill_pods:,}",
        f"{each.backfill_keys:,}",
        f"{each.control_pods:,}",
        f"{each.troubles:,}",
        f"{each.dead_letters:,}",
        _rate(each),
        f"{each.shards:,}",
        f"{each.bytes / 1_048_576:,.1f} MB" if each.partition == 0 else "",
    )


def _rate(each: Stats) -> str:
    """Of whoever works on it now; a dash where nobody does, or has not been heard of for a while."""
    is_heard = each.worker is not None and each.worker_seen_s is not None and each.worker_seen_s < _SILENCE_S
    return f"{each.keys_per_second:,.0f}" if is_heard else "-"


def _progress(each: Backfill) -> str:
    """A bar for a backfill that is not at its end: how much of the table is in the tube and was taken out again."""
    total = max(each.keys if each.finished_at else max(each.keys, each.rows), 1)
    if each.finished_at and not each.waiting_keys:
        return ""
    share = max(0.0, min(1.0, (each.keys - each.waiting_keys) / total))
    # Never full before it is.
    share = min(share, 0.99)
    filled = int(share * _BAR)
    return f"  [{'#' * filled}{'-' * (_BAR - filled)}] {share:.0%}, {each.waiting_keys:,} keys wait"


def backfill_text(each: Backfill) -> str:
    """Of what, how far, whether it is done."""
    state = f"finished {each.finished_at:%Y-%m-%d %H:%M:%S} UTC" if each.finished_at else "not finished"
    shard = "all shards" if each.shard is None else f"shard {each.shard}"
    return f"{each.tube} {each.table} ({shard}): {each.keys:,} keys in {each.pods:,} pods, {state}"


def letters_text(letters: Sequence[Letter]) -> str:
    """A line for each key that could not be delivered, and one below it with the reason."""
    if not letters:
        return "no dead letters"
    lines: list[str] = []
    for each in letters:
        state = "parked" if each.next_at is None else f"tried again at {each.next_at:%H:%M:%S} UTC"
        lines.append(
            f"{each.table or each.source} {each.key} (shard {each.shard}): {each.attempts} attempts,"
            f" last {each.last_at:%Y-%m-%d %H:%M:%S} UTC, {state}"
        )
        lines.append(f"    {each.error}")
    return "\n".join(lines)
