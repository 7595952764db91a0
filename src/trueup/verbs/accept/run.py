"""Record the differences of a report as accepted: read the report, choose the differences, write them to the store."""

from __future__ import annotations

import getpass
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import Any

from trueup.db.names import display_name
from trueup.errors import ConfigError, StoreError
from trueup.report.json_reader import Report, open_report, showing
from trueup.store import TaskStore, times
from trueup.store.accepted import Acceptance
from trueup.task.accepted import scope_in
from trueup.verbs.accept.choose import Chosen


@dataclass(frozen=True)
class AcceptRequest:
    """The report, why its differences are wanted, until when, who says so, and which keys (none: all)."""

    report: Path
    reason: str
    until: str = ""
    by: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class AcceptResult:
    """What was accepted."""

    acceptance: Acceptance
    remarks: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {**asdict(self.acceptance), "remarks": list(self.remarks)}


def run(request: AcceptRequest, *, store: TaskStore) -> AcceptResult:
    """Accept the differences that a report lists; raises ConfigError or StoreError if there is nothing to accept."""
    reason = request.reason.strip()
    if not reason:
        raise ConfigError("--reason is empty", cure="say why the differences are wanted")
    until = expiry(request.until) if request.until else None
    report = open_report(request.report)
    with showing(request.report):
        summary, proof = report.head["summary"], report.head["proof"]
        scope = scope_in(proof, str(request.report))
        chosen = Chosen(report, request.only)
        remarks = _remarks(report)
        # Checked and counted before anything is written.
        differences = list(chosen.differences())
        if not differences:
            raise StoreError(
                f"the report {request.report} lists no confirmed difference", cure="there is nothing to accept"
            )
        acceptance = store.accept(
            table=display_name(summary["schema"], summary["table"]),
            nodes=",".join(summary["nodes"]),
            scope=scope,
            reason=reason,
            by=request.by.strip() or user_name(),
            until=until,
            task_id=str(summary["task_id"]),
            report=str(request.report.absolute()),
            differences=differences,
        )
    return AcceptResult(acceptance, tuple(remarks))


def expiry(text: str) -> str:
    """Return when an acceptance expires, from a date (its end, UTC) or a time; raises ConfigError if it is past."""
    try:
        if len(text) == len("2027-01-31"):
            moment = datetime.combine(date.fromisoformat(text), time.max, timezone.utc)
        else:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except ValueError:
        cure = "write a date such as 2027-01-31, or a time such as 2027-01-31T12:00Z"
        raise ConfigError(f"--until: {text!r} is not a date", cure=cure) from None
    if moment <= datetime.now(timezone.utc):
        raise ConfigError(f"--until: {text} is past", cure="give a date in the future")
    return times.iso(moment)


def _remarks(report: Report) -> list[str]:
    remarks = []
    hot = sum(section.listed.get("hot", 0) for section in report.sections)
    if hot:
        remarks.append(f"{hot:,} hot rows of the report are not accepted: their difference was not confirmed")
    if report.head["incomplete"]:
        remarks.append("the report is INCOMPLETE: only the differences that it lists are accepted")
    elif report.head["summary"].get("diff_row_limit_reached"):
        remarks.append("the diff reached its limit of differences: only those that it lists are accepted")
    return remarks


def user_name() -> str:
    """Return the name of the user of this process; raises ConfigError if it is not known."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("the name of the user is not known", cure="give it with --by") from None
