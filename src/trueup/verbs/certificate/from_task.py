"""What a diff or a check has proven, from its task: only MATCH can be stated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from trueup.db.names import display_name
from trueup.errors import CheckFailed
from trueup.report.extent import Extent
from trueup.store import Task, TaskStore

_ONE = ("TABLE_DIFF", "TABLE_CHECK")
_MANY = ("TABLES_DIFF", "TABLES_CHECK")


def tables_of_task(task_id: str, store: TaskStore) -> list[dict[str, Any]]:
    """Return the tables that a task has proven. Raises CheckFailed unless all of them match."""
    task = store.get(task_id)
    if task.task_type in _ONE:
        return [_table(task)]
    if task.task_type in _MANY:
        return list(_tables(task, store))
    raise CheckFailed(
        [f"task {task.task_id[:8]} is no diff or check: its type is {task.task_type}"], cure="list them: trueup tasks"
    )


def _tables(task: Task, store: TaskStore) -> Iterator[dict[str, Any]]:
    summary = task.task_context.get("diff_summary") or {}
    if not summary.get("tables"):
        raise _refused(task, "it has no result")
    for table in summary["tables"]:
        if table["verdict"] != "MATCH" or not table["task_id"]:
            raise _refused(task, f"{table['table']} is {table['verdict']}")
        yield _table(store.get(table["task_id"]))


def _table(task: Task) -> dict[str, Any]:
    summary: Mapping[str, Any] = task.task_context.get("diff_summary") or {}
    name = display_name(task.schema, task.table_name)
    verdict = summary.get("verdict") or task.task_status
    if verdict != "MATCH":
        raise _refused(task, f"{name} is {verdict}")
    proof = summary.get("proof") or {}
    scope = proof.get("scope")
    if not scope:
        raise _refused(task, "the task store does not have the identities of its tables: compare the tables again")
    extent = Extent.from_json(summary["extent"])
    nodes = [
        {
            "node": node,
            "table": name,
            "table_oid": position["table_oid"],
            "system": position["system"],
            "timeline": position["timeline"],
            "position": position["log_position"],
            "transactions": position["transactions"],
            "is_standby": position["in_recovery"],
            "server_version": position["server_version"],
            "read_at": position["taken_at"],
            "rows": int(summary["rows"].get(node, 0)),
        }
        for node, position in proof["nodes"].items()
    ]
    return {
        "table": name,
        "reason": "",
        "how": summary["mode"],
        "task": task.task_id,
        "validation": None,
        # Rows that were written later are not covered.
        "proven_at": min(each["read_at"] for each in nodes),
        "completed_at": task.finished_at,
        "nodes": nodes,
        "key": scope["key"],
        "compared": {
            "columns": scope["columns"],
            "filter": extent.filter,
            "selected": list(extent.selected),
            "left_out": list(extent.left_out),
            "is_whole": extent.is_whole,
            "numeric": scope["numeric"],
            "float_tolerance": "0.0",
            "digest": proof["digest"],
            "is_consistent": bool(proof["one_snapshot_a_node"]) and not proof["earlier"],
        },
        "rows": int(summary["total_rows_checked"]),
        "blocks": {"count": int(summary["blocks"]), "sha256": None, "touched": 0, "oldest_hashed_at": None},
        "report_sha256": _hash(task.diff_file_path),
        "since_proof": summary.get("since_proof"),
    }


def _hash(report: str) -> str | None:
    """Return the hash of the report file, if it still exists."""
    if not report:
        return None
    try:
        with open(Path(report), "rb") as file:
            digest = sha256()
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError:
        return None
    return digest.hexdigest()


def _refused(task: Task, reason: str) -> CheckFailed:
    cure = "only a diff or check with the verdict MATCH can be certified"
    return CheckFailed([f"task {task.task_id[:8]} proves nothing: {reason}"], cure=cure)
