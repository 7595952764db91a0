"""The history of tables: one row per table and run, and per table the verdict, the last proof and sums."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.store.values import from_json, to_json

ONE_TABLE = ("TABLE_DIFF", "TABLE_CHECK", "TABLE_RERUN")
MANY_TABLES = ("TABLES_DIFF", "TABLES_CHECK")
# `trueup prove`: the certificates of a validation, and all captured changes since.
PROVEN_TABLES = ("TABLES_PROVE",)
MATCH, ACCEPTED, DIFFER, INCOMPLETE = "MATCH", "ACCEPTED", "DIFFER", "INCOMPLETE"


@dataclass(frozen=True)
class TableRun:
    """The result of one run for one table."""

    task_id: str
    cluster_name: str
    nodes: str
    table_name: str
    mode: str
    # Whether all rows and columns were compared.
    is_whole: bool
    verdict: str
    # Of a check: differing blocks. None: not known.
    differences: int | None
    # Pair of nodes -> kind -> count; node -> position of its snapshot.
    kinds: Mapping[str, Mapping[str, int]]
    positions: Mapping[str, str]
    rows: int
    seconds: float
    started_at: str
    finished_at: str

    @property
    def accepted(self) -> int:
        """The accepted differences of all pairs of nodes."""
        return sum(counts.get("accepted", 0) for counts in self.kinds.values())

    @property
    def is_proof(self) -> bool:
        """Whether the run proved that the table is equal on these nodes."""
        return self.is_whole and self.verdict == MATCH and self.mode != "rerun"


@dataclass(frozen=True)
class TableState:
    """A table on a set of nodes: the run that decides its verdict, and its last proof."""

    run: TableRun
    # When the last run that proved the table began; None: it was never proven.
    matched_at: str | None
    runs: int
    rows_total: int
    # Why the verdict does not count any more: what saw a difference later, on the same nodes, in another way.
    against: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether the table is proven: the last look at all of it, in any way, found it equal."""
        return self.run.is_proof and not self.against


def with_contradictions(states: Iterable[TableState]) -> list[TableState]:
    """Return the tables, each with what contradicts its verdict: a later one of the same nodes, under another name.

    The same nodes may be compared as a cluster, by their names, and by a validation. What is equal under one name does
    not prove the table under another, which may be of another configuration; what differs there does count.
    """
    listed = list(states)
    groups: dict[tuple[str, frozenset[str]], list[TableRun]] = {}
    for state in listed:
        groups.setdefault(_same_nodes(state.run), []).append(state.run)
    return [
        replace(state, against=state.against or _against(state.run, groups[_same_nodes(state.run)])) for state in listed
    ]


def _same_nodes(run: TableRun) -> tuple[str, frozenset[str]]:
    return run.table_name, frozenset(run.nodes.split(","))


def _against(run: TableRun, others: Iterable[TableRun]) -> str:
    later = [it for it in others if it.finished_at > run.finished_at and it.verdict in (DIFFER, INCOMPLETE)]
    if run.verdict not in (MATCH, ACCEPTED) or not later:
        return ""
    last = max(later, key=lambda it: it.finished_at)
    return f"{last.verdict} later (task {last.task_id[:8]})"


def record(connection: sqlite3.Connection, task: Mapping[str, Any]) -> None:
    """Add the tables of a task that has ended, from its row of the table `tasks`, in the open transaction."""
    for run in _runs(task):
        _add(connection, run, has_result=bool(from_json(task["task_context"]).get("diff_summary")))


def fill(connection: sqlite3.Connection) -> None:
    """Add the tables of all tasks that have ended, of a store that had no history."""
    types = (*ONE_TABLE, *MANY_TABLES, *PROVEN_TABLES)
    marks = ", ".join("?" * len(types))
    query = f"SELECT * FROM tasks WHERE task_type IN ({marks}) AND task_status <> 'RUNNING' ORDER BY finished_at, seq"
    for row in connection.execute(query, types).fetchall():
        record(connection, dict(row))


def states(connection: sqlite3.Connection) -> list[TableState]:
    """Return all tables, by name."""
    return with_contradictions(
        TableState(_run(row), row["matched_at"], row["runs"], row["rows_total"])
        for row in connection.execute(_sql("states"))
    )


def runs(
    connection: sqlite3.Connection,
    *,
    table: str | None = None,
    cluster: str | None = None,
    nodes: str | None = None,
    limit: int = -1,
) -> list[TableRun]:
    """Return the runs of a table, or of all tables, the newest first; a negative limit returns all."""
    values = {"table_name": table, "cluster_name": cluster, "nodes": nodes, "limit": limit}
    return [_run(row) for row in connection.execute(_sql("runs"), values)]


def forget(connection: sqlite3.Connection, before: str) -> int:
    """Delete the runs that ended before a time, except those that decide the verdict of a table; return how many."""
    return connection.execute(_sql("forget"), {"before": before}).rowcount


def _add(connection: sqlite3.Connection, run: TableRun, *, has_result: bool) -> None:
    where = {"table_name": run.table_name, "cluster_name": run.cluster_name, "nodes": run.nodes}
    scope = "table_name = :table_name AND cluster_name = :cluster_name AND nodes = :nodes"
    known = connection.execute(f"SELECT 1 FROM table_states WHERE {scope}", where).fetchone()
    if not has_result and known is None:
        # Nothing was ever compared: the name of the table may be wrong.
        return
    # A task that is resumed ends a second time.
    ident = {"task_id": run.task_id, "table_name": run.table_name}
    same = "FROM table_runs WHERE task_id = :task_id AND table_name = :table_name"
    before = connection.execute(f"SELECT seq, rows {same}", ident).fetchall()
    decided = connection.execute(f"SELECT decided_by FROM table_states WHERE {scope}", where).fetchone()
    was_deciding = decided is not None and decided[0] in [old["seq"] for old in before]
    connection.execute(f"DELETE {same}", ident)
    row = {**vars(run), "kinds": to_json(run.kinds), "positions": to_json(run.positions)}
    seq = connection.execute(_sql("run"), row).lastrowid
    state = {
        **where,
        "seq": seq,
        "decides": run.is_whole or run.verdict == DIFFER or was_deciding,
        "matched_at": run.started_at if run.is_proof else None,
        "rows": max(0, run.rows - sum(int(old["rows"]) for old in before)),
    }
    if was_deciding and not (run.is_whole or run.verdict == DIFFER):
        # A part that is equal now says nothing about the table: the run before decides again.
        earlier = connection.execute(_sql("earlier"), state).fetchone()
        state["seq"] = earlier["seq"] or seq
    connection.execute(_sql("state"), state)
    if before:
        connection.execute(f"UPDATE table_states SET runs = runs - 1 WHERE {scope}", where)


def _runs(task: Mapping[str, Any]) -> Iterator[TableRun]:
    context = from_json(task["task_context"])
    if task["task_type"] in ONE_TABLE:
        yield _one(task, context)
    elif task["task_type"] in MANY_TABLES:
        yield from _without_task(task, context)
    elif task["task_type"] in PROVEN_TABLES:
        yield from _proven(task, context)


def _proven(task: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[TableRun]:
    """Yield the tables of a proof of a validation."""
    summary: Mapping[str, Any] = context.get("diff_summary") or {}
    for table in summary.get("tables") or ():
        is_known = table["verdict"] != INCOMPLETE
        yield TableRun(
            task_id=task["task_id"],
            cluster_name=task["cluster_name"],
            nodes=summary["nodes"],
            table_name=table["table"],
            mode="prove",
            is_whole=_is_whole(table["extent"]),
            verdict=table["verdict"],
            differences=table["errors"] if is_known else None,
            kinds={summary["pair"]: {"accepted": table["ignored"]}} if table["ignored"] else {},
            positions=summary["positions"],
            rows=0,
            seconds=float(summary["seconds"]),
            # When the markers were written: rows written later are not covered.
            started_at=summary["at"],
            finished_at=task["finished_at"],
        )


def _is_whole(extent: Mapping[str, Any]) -> bool:
    """Return whether all rows and columns were compared: see `report.extent`."""
    return not any(extent.values())


def _one(task: Mapping[str, Any], context: Mapping[str, Any]) -> TableRun:
    summary: Mapping[str, Any] = context.get("diff_summary") or {}
    mode = str(summary.get("mode") or context.get("mode") or "diff")
    counts = summary.get("diff_rows_count") or {}
    differences = summary.get("mismatched_ranges_count") if mode == "check" else sum(counts.values())
    return TableRun(
        task_id=task["task_id"],
        cluster_name=task["cluster_name"],
        nodes=",".join(summary.get("nodes") or ()) or str(context.get("nodes") or ""),
        table_name=display_name(task["schema"], task["table_name"]),
        mode=mode,
        is_whole=mode != "rerun" and _is_whole(summary.get("extent") or _requested(context)),
        verdict=str(summary.get("verdict") or INCOMPLETE),
        differences=differences if summary else None,
        kinds=summary.get("kinds") or {},
        positions=summary.get("positions") or {},
        rows=int(summary.get("total_rows_checked") or 0),
        seconds=float(summary.get("time_taken") or task["time_taken"] or 0),
        started_at=task["started_at"],
        finished_at=task["finished_at"],
    )


def _requested(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was requested, of a run that has no result."""
    return {name: context.get(name) for name in ("table_filter", "columns", "exclude_columns")}


def _without_task(task: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[TableRun]:
    """Yield the tables of a run over many tables that were not compared on all nodes."""
    summary: Mapping[str, Any] = context.get("diff_summary") or {}
    for table in summary.get("tables") or ():
        if table["missing_on"] or not table["task_id"]:
            yield TableRun(
                task_id=task["task_id"],
                cluster_name=task["cluster_name"],
                nodes=",".join(summary["nodes"]),
                table_name=table["table"],
                mode=summary["mode"],
                is_whole=True,
                verdict=table["verdict"],
                differences=None,
                kinds={},
                positions={},
                rows=0,
                seconds=0.0,
                started_at=task["started_at"],
                finished_at=task["finished_at"],
            )


def _run(row: sqlite3.Row) -> TableRun:
    values = {name: row[name] for name in TableRun.__dataclass_fields__}
    parsed = {name: from_json(values[name]) for name in ("kinds", "positions")}
    return TableRun(**{**values, **parsed, "is_whole": bool(values["is_whole"])})


def _sql(name: str) -> str:
    return load("trueup.store", "history_queries.sql")[name]
