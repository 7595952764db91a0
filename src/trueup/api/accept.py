"""`trueup.accept`, `acceptances` and `revoke`: differences that are known and wanted."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.api.parameters import configuration
from trueup.config.model import Config
from trueup.store import TaskStore, times
from trueup.store.accepted import Acceptance
from trueup.task.past import find_report
from trueup.verbs.accept.run import AcceptRequest, AcceptResult, user_name
from trueup.verbs.accept.run import run as accept_run


def accept(
    report: str,
    *,
    reason: str,
    until: str = "",
    by: str = "",
    only: Sequence[str] = (),
    config: Config | str | None = None,
    task_db: str | None = None,
) -> AcceptResult:
    """Record the differences that a report lists as known and wanted; later runs report them apart.

    `report` is the path of a JSON report of one table, or the id of its task. `until` is a date or a time (UTC) at
    which the acceptance expires, `by` a name (default: the user of the process), `only` selects keys. Exactly the rows
    of the report are accepted: a row that changes again is a new difference. Raises ConfigError on wrong options and
    StoreError if the report cannot be read or lists nothing; nothing is recorded then.
    """
    configured = configuration(config)
    with TaskStore(task_db, configured=configured.tasks.task_db) as store:
        request = AcceptRequest(find_report(report, store), reason, until, by, tuple(only))
        return accept_run(request, store=store)


def acceptances(
    *,
    table: str | None = None,
    all: bool = False,
    config: Config | str | None = None,
    task_db: str | None = None,
) -> list[Acceptance]:
    """Return the acceptances in effect, the newest first; with `all=True` also those that expired or were revoked.

    `table` is the name of a table as results show it.
    """
    configured = configuration(config)
    with TaskStore(task_db, configured=configured.tasks.task_db) as store:
        now = times.now()
        return [each for each in store.acceptances(table) if all or each.state(now) == "active"]


def revoke(
    acceptance: str, *, by: str = "", config: Config | str | None = None, task_db: str | None = None
) -> Acceptance:
    """End an acceptance (the start of its id is enough) before its time; its differences are reported again.

    Raises StoreError if it does not exist, or was revoked already.
    """
    configured = configuration(config)
    with TaskStore(task_db, configured=configured.tasks.task_db) as store:
        return store.revoke(acceptance, by=by.strip() or user_name())
