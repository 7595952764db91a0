"""The document of a switchover or a rehearsal: what a change board reads, as one HTML page beside the other reports."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from trueup.errors import StoreError, TrueupError
from trueup.report.html import write_html
from trueup.report.json_file import report_path
from trueup.report.switchover import page_of_switchover
from trueup.verbs.switchover import way_back
from trueup.verbs.switchover.decision import ResultUnknown
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.phases import Phases
from trueup.verbs.switchover.ready import Ready
from trueup.verbs.switchover.request import Route, SwitchoverRequest

_log = logging.getLogger(__name__)

# What belongs to a server or a session, and not to the rows and definitions of a database.
_NOT_COPIED = (
    "settings of the server (postgresql.conf, pg_hba.conf)",
    "roles and their passwords, unless trueup sync start --create-roles created them",
    "publications, subscriptions, replication slots, and jobs that run outside of the database",
    "what a session has: temporary tables, settings, advisory locks, LISTEN, prepared statements",
)
_NOT_REHEARSED = (
    "the time of the commit of the decision, which waits for synchronous standbys, and of the opening",
    "the applications: whether they follow the pointer, and work with the new server",
)


def begin(request: SwitchoverRequest, route: Route, task_id: str) -> Outcome:
    """Return what is known when a switchover begins."""
    return Outcome(
        sync=request.sync,
        action=route.action,
        source=route.source.name,
        target=route.target.name,
        proof=request.proof,
        budget=request.budget,
        address="",
        task_id=task_id,
        rollback=route.source is request.second,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def complete(outcome: Outcome, ready: Ready, phases: Phases) -> Outcome:
    """Return the outcome with what the preparation and the pause have found; asks no server after the decision."""
    tables = ready.link.tables
    planned = ready.link.plan.remarks
    left_out = [f"{name} is not in the sync ({why})" for name, why in ready.outside.values()]
    is_rehearsal = not ready.token
    return replace(
        outcome,
        address=ready.address,
        pause_ms=phases.pause_ms,
        milliseconds=phases.milliseconds,
        rounds=ready.rounds.count,
        remarks=ready.remarks,
        tables=len(tables),
        rows=ready.link.plan.rows,
        waited=ready.waited,
        not_copied=tuple(dict.fromkeys((*planned, *ready.not_copied, *left_out, *_NOT_COPIED))),
        unchecked=(*(_NOT_REHEARSED if is_rehearsal else ()), *way_back.UNKNOWN),
    )


def write(outcome: Outcome, folder: str) -> Outcome:
    """Write the page; return the outcome with its path. A page that cannot be written changes nothing else."""
    if outcome.already:
        return outcome
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S")
    path = report_path(
        Path(folder or ".").absolute(), "switchover", outcome.sync, stamp, kind=outcome.action, ending="html"
    )
    written = replace(outcome, page=str(path))
    try:
        write_html(path, page_of_switchover(written.as_json()))
    except StoreError as error:
        return replace(outcome, remarks=(*outcome.remarks, f"the page could not be written: {error.message}"))
    return written


def write_failed(outcome: Outcome, folder: str, phases: Phases, error: TrueupError, *, is_decided: bool) -> None:
    """Write the page of an attempt that failed, before its decision or after it."""
    conditions = error.conditions if isinstance(error, GateClosed) else ()
    failed = replace(
        outcome,
        pause_ms=phases.pause_ms,
        milliseconds=phases.milliseconds,
        conditions=conditions,
        is_decided=None if isinstance(error, ResultUnknown) else is_decided,
        problem=str(error),
        cure=error.cure,
    )
    page = write(failed, folder).page
    if page:
        _log.info("report: %s", page)
