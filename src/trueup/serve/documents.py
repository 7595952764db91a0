"""The API: what was seen as JSON, and the OpenAPI document that describes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from trueup import __version__
from trueup.capture.triggers.model import as_json
from trueup.serve.attention import attention
from trueup.serve.model import Part, Seen
from trueup.serve.render import iso
from trueup.store import Task
from trueup.store.history import TableRun


def overview(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return the sources with their ages, the number of tasks, and what needs attention."""
    counts = [(kind, status, count) for summary in seen.summaries() for kind, status, count in summary.counts]
    return {
        "sources": [_part(part) for part in seen.parts],
        "tasks": [{"type": kind, "status": status, "count": count} for kind, status, count in counts],
        "attention": [{"text": cell.text, "tone": cell.tone, "note": cell.note} for cell in attention(seen)],
    }


def tables(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return the state of every table."""
    rows = [
        {
            **run(state.run),
            "matched_at": state.matched_at,
            "is_proven": state.is_proven,
            "against": state.against,
            "runs": state.runs,
            "rows_total": state.rows_total,
        }
        for state in seen.states
    ]
    return {"tables": rows}


def validations(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return every validation with its open errors; keys and rows only if rows are shown."""
    found = []
    for validation in seen.validations():
        errors = [error.as_json() for error in validation.errors]
        if not show_rows:
            for error in errors:
                for name in ("key", "source_row", "target_row"):
                    error.pop(name)
        found.append({"meta": validation.meta, **validation.status.as_json(), "error_rows": errors})
    return {"validations": _plain(found), "sources": _nodes(seen)}


def tubes(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return every tube with its partitions and tables."""
    found = [
        {
            "node": tube.node,
            **as_json(tube.info),
            "backlog": tube.backlog,
            "partitions_seen": [asdict(row) for row in tube.stats],
        }
        for tube in seen.tubes()
    ]
    return {"tubes": _plain(found), "sources": _nodes(seen)}


def syncs(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return every sync and its switchover."""
    found = [
        {
            "sync": sync.name,
            "from": sync.source,
            "to": sync.target,
            "status": sync.status.as_json() if sync.status else None,
            "switchover": sync.switchover.as_json() if sync.switchover else None,
            "problem": sync.problem,
        }
        for sync in seen.syncs.value or ()
    ]
    return {"syncs": _plain(found), "sources": [_part(seen.syncs)]}


def schedule(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return the jobs of the schedule."""
    return {"jobs": [asdict(job) for job in seen.schedule.value or ()], "sources": [_part(seen.schedule)]}


def doctor(seen: Seen, *, show_rows: bool) -> dict[str, Any]:
    """Return the findings of doctor."""
    return {"findings": [asdict(finding) for finding in seen.doctor.value or ()], "sources": [_part(seen.doctor)]}


READERS: dict[str, Callable[..., dict[str, Any]]] = {
    "overview": overview,
    "tables": tables,
    "validations": validations,
    "tubes": tubes,
    "syncs": syncs,
    "schedule": schedule,
    "doctor": doctor,
}


def task(found: Task) -> dict[str, Any]:
    """Return a task."""
    return asdict(found)


def run(found: TableRun) -> dict[str, Any]:
    """Return the result of one run for one table."""
    return asdict(found)


def _nodes(seen: Seen) -> list[dict[str, Any]]:
    return [_part(part) for part in seen.nodes.values()]


def _part(part: Part[Any]) -> dict[str, Any]:
    """Return how old a source is, and why it could not be read."""
    seen_at = iso(part.seen_at) if part.seen_at else None
    return {"name": part.name, "seen_at": seen_at, "error": part.error or None}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# The description.

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_REAL: dict[str, Any] = {"type": "number"}
_TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
_MAP: dict[str, Any] = {"type": "object"}


def _maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def _object(properties: dict[str, Any], *, more: bool = False) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        **({} if more else {"additionalProperties": False}),
    }


def _list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


_RUN = {
    "task_id": _TEXT, "cluster_name": _TEXT, "nodes": _TEXT, "table_name": _TEXT,
    "mode": {"enum": ["diff", "check", "rerun", "prove"]}, "is_whole": {"type": "boolean"},
    "verdict": {"enum": ["MATCH", "ACCEPTED", "RESOLVED", "DIFFER", "INCOMPLETE"]},
    "differences": _maybe(_NUMBER), "kinds": _MAP,
    "positions": _MAP, "rows": _NUMBER, "seconds": _REAL, "started_at": _TIME, "finished_at": _TIME,
}  # fmt: skip
_TASK = {
    "task_id": _TEXT, "task_type": _TEXT, "task_status": {"enum": ["RUNNING", "COMPLETED", "FAILED", "INTERRUPTED"]},
    "cluster_name": _TEXT, "task_context": _MAP, "schema": _TEXT, "table_name": _TEXT, "repset_name": _TEXT,
    "diff_file_path": _TEXT, "started_at": _TIME, "finished_at": _maybe(_TIME), "time_taken": _maybe(_REAL),
    "progress": _MAP, "heartbeat_at": _TIME, "host": _TEXT, "pid": _NUMBER,
}  # fmt: skip
_SOURCE = _object({"name": _TEXT, "seen_at": _maybe(_TIME), "error": _maybe(_TEXT)})
SCHEMAS: dict[str, dict[str, Any]] = {
    "Source": _SOURCE,
    "Run": _object(_RUN),
    "Task": _object(_TASK),
    "Table": _object(
        {
            **_RUN,
            "matched_at": _maybe(_TIME),
            "is_proven": {"type": "boolean"},
            "against": _TEXT,
            "runs": _NUMBER,
            "rows_total": _NUMBER,
        }
    ),
    "Validation": _object(
        {
            "meta": _TEXT,
            "name": _TEXT,
            "source": _TEXT,
            "target": _TEXT,
            "state": _TEXT,
            "reason": _TEXT,
            "position": _maybe(_TEXT),
            "validated": _maybe(_TEXT),
            "lag_bytes": _maybe(_NUMBER),
            "lag_seconds": _maybe(_REAL),
            "retained_bytes": _maybe(_NUMBER),
            "pending": _NUMBER,
            "open_errors": _NUMBER,
            "blind_spots": _list(_TEXT),
            "tables": _list(_MAP),
            "error_rows": _list(_MAP),
        },
        more=True,
    ),
    "Tube": _object(
        {"node": _TEXT, "tube": _TEXT, "backlog": _NUMBER, "tables": _list(_MAP), "partitions_seen": _list(_MAP)},
        more=True,
    ),
    "Sync": _object(
        {
            "sync": _TEXT,
            "from": _TEXT,
            "to": _TEXT,
            "status": _maybe(_MAP),
            "switchover": _maybe(_MAP),
            "problem": _TEXT,
        }
    ),
    "Job": _object(dict.fromkeys(("name", "command", "when", "next", "last", "status", "result", "task_id"), _TEXT)),
    "Finding": _object(
        {"level": {"enum": ["OK", "WARN", "FAIL"]}, "check": _TEXT, "where": _TEXT, "message": _TEXT, "cure": _TEXT}
    ),
    "Attention": _object({"text": _TEXT, "tone": _TEXT, "note": _TEXT}),
    "Count": _object({"type": _TEXT, "status": _TEXT, "count": _NUMBER}),
}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


# Path -> what it returns, and its answer.
_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "overview": (
        "Sources with their ages, numbers of tasks, and what needs attention.",
        _object(
            {"sources": _list(_ref("Source")), "tasks": _list(_ref("Count")), "attention": _list(_ref("Attention"))}
        ),
    ),
    "tables": ("The last verdict and the last proof of every table.", _object({"tables": _list(_ref("Table"))})),
    "history": ("The runs of a table.", _object({"runs": _list(_ref("Run"))})),
    "tasks": ("A page of tasks, the newest first.", _object({"tasks": _list(_ref("Task")), "next": _maybe(_TEXT)})),
    "tasks/{task_id}": ("One task.", _ref("Task")),
    "validations": (
        "All validations. Keys and rows of errors are left out unless the server shows rows.",
        _object({"validations": _list(_ref("Validation")), "sources": _list(_ref("Source"))}),
    ),
    "tubes": ("All tubes.", _object({"tubes": _list(_ref("Tube")), "sources": _list(_ref("Source"))})),
    "syncs": ("All syncs and switchovers.", _object({"syncs": _list(_ref("Sync")), "sources": _list(_ref("Source"))})),
    "schedule": ("The jobs of the schedule.", _object({"jobs": _list(_ref("Job")), "sources": _list(_ref("Source"))})),
    "doctor": (
        "The findings of doctor.",
        _object({"findings": _list(_ref("Finding")), "sources": _list(_ref("Source"))}),
    ),
}
_PARAMETERS = {
    "history": (("name", True), ("nodes", False)),
    "tasks": (("type", False), ("status", False), ("before", False), ("before_id", False)),
    "tasks/{task_id}": (("task_id", True),),
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths = {
        f"/api/v1/{path}": {
            "get": {
                "summary": summary,
                "operationId": path.replace("/", "_").replace("{", "").replace("}", ""),
                "parameters": [
                    {
                        "name": name,
                        "in": "path" if f"{{{name}}}" in path else "query",
                        "required": needed,
                        "schema": _TEXT,
                    }
                    for name, needed in _PARAMETERS.get(path, ())
                ],
                "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
            }
        }
        for path, (summary, schema) in _PATHS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "trueup", "version": __version__, "description": "Read-only: what the server has seen last."},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def openapi_text() -> str:
    """Return the OpenAPI document as docs/openapi.json has it."""
    return json.dumps(openapi(), indent=1) + "\n"
