"""`trueup.Switchover`: a switchover between the two nodes of a sync from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from trueup.api.sync import two_nodes
from trueup.config.model import Config
from trueup.engine.progress import Progress, Silent
from trueup.store import TaskStore
from trueup.verbs.switchover import ending, finish, prepare
from trueup.verbs.switchover import run as path
from trueup.verbs.switchover import status as status_module
from trueup.verbs.switchover.ending import Ended
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.request import EXECUTE, REHEARSE, ROLLBACK, SwitchoverRequest, seconds
from trueup.verbs.switchover.status import SwitchStatus

Proof = Literal["digest", "keys", "validated"]


class Switchover:
    """The switchover of the sync `name`; `source` and `target` are those of the sync, whichever is in use now.

    The object keeps no connection between calls. Every method raises a TrueupError if it fails; until the pointer has
    flipped, the old database is then in use as before.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        name: str = "main",
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
        task_db: str | None = None,
    ) -> None:
        """Check the nodes: names in the configuration or in `nodes` (name -> address)."""
        self._config, self._first, self._second = two_nodes(source, target, config, nodes)
        self._name = name
        self._task_db = task_db

    def prepare(
        self,
        *,
        timeout: float = 60.0,
        way_back_limit: int | None = None,
        first_address: str = "",
        second_address: str = "",
    ) -> tuple[str, int]:
        """Create pointers and guards in both databases; return the node in use and the number of new guards.

        `way_back_limit` (bytes) changes the maximum size of an existing change log for the way back.
        """
        request = replace(
            self._request(timeout),
            way_back_limit=way_back_limit,
            first_address=first_address,
            second_address=second_address,
        )
        return prepare.prepare_only(request)

    def execute(
        self,
        *,
        budget: float | str = 5.0,
        proof: Proof = "digest",
        validation: str = "",
        meta: str = "",
        close_keys: int = 1000,
        jobs: int = 4,
        accept_schema: Sequence[str] = (),
        timeout: float = 60.0,
        way_back_limit: int | None = None,
        first_address: str = "",
        second_address: str = "",
        report_dir: str | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Move the applications from `source` to `target` and return the report.

        The arguments mean the same as the options of `trueup switchover execute`; `budget` is in seconds, or a text
        such as `500ms`, `way_back_limit` in bytes. If an earlier call was killed after its decision, this call
        completes it. The path of the HTML report is in the attribute `page`.
        """
        return self._move(EXECUTE, locals())

    def rehearse(
        self,
        *,
        rollback: bool = False,
        budget: float | str = 5.0,
        proof: Proof = "digest",
        validation: str = "",
        meta: str = "",
        close_keys: int = 1000,
        jobs: int = 4,
        accept_schema: Sequence[str] = (),
        timeout: float = 60.0,
        first_address: str = "",
        second_address: str = "",
        report_dir: str | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Run `execute` (or `rollback`) up to the decision, in a pause of at most `budget`, and release everything.

        Both databases stay prepared, and a sync that follows continues. The report has the measured pause, the
        conditions, and the path of the HTML report in `page`. Raises the error that `execute` would raise.
        """
        return self._move(REHEARSE, locals())

    def rollback(
        self,
        *,
        budget: float | str = 5.0,
        proof: Proof = "digest",
        validation: str = "",
        meta: str = "",
        close_keys: int = 1000,
        jobs: int = 4,
        accept_schema: Sequence[str] = (),
        timeout: float = 60.0,
        first_address: str = "",
        second_address: str = "",
        report_dir: str | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Move the applications back from `target` to `source`, with all later writes, and return the report.

        The arguments are those of `execute`.
        """
        return self._move(ROLLBACK, locals())

    def status(self) -> SwitchStatus:
        """Return which database is in use, the phase, and the locks and their holders; write nothing."""
        return status_module.status(self._request())

    def abort(self) -> Ended:
        """End a running switchover: terminate its sessions. A decision that was made is not undone."""
        return ending.abort(self._request())

    def reset(self, *, timeout: float = 60.0) -> Ended:
        """Remove pointers, guards and the way back; the sync stays."""
        return ending.reset(self._request(timeout))

    def finish(
        self,
        *,
        reopen_old: bool = False,
        without_old: bool = False,
        without_new: bool = False,
        accept_loss: bool = False,
        keep_closed: bool = False,
        timeout: float = 60.0,
    ) -> Ended:
        """Remove the sync and the switchover; the database that is not in use stays closed, unless `reopen_old`.

        `without_old` or `without_new`: the first or the second database is lost; with `accept_loss` the other one is
        put into use if it was not, without the changes that it lacks; with `keep_closed` it stays closed.
        """
        how = finish.Finish(reopen_old, without_old, without_new, accept_loss, keep_closed)
        return finish.finish(self._request(timeout), how)

    def _request(self, timeout: float = 60.0) -> SwitchoverRequest:
        return SwitchoverRequest(self._name, self._first, self._second, timeout=timeout)

    def _move(self, action: str, parameters: Mapping[str, Any]) -> Outcome:
        values = {name: value for name, value in parameters.items() if name not in ("self", "progress")}
        budget, meta = values["budget"], values["meta"]
        values["budget"] = seconds(budget) if isinstance(budget, str) else float(budget)
        values["report_dir"] = values["report_dir"] or self._config.diff.report_dir
        values["meta"] = self._config.select(names=[meta], at_least=1)[0] if meta else None
        request = replace(self._request(), **values)
        with TaskStore(self._task_db, configured=self._config.tasks.task_db) as store:
            return path.move(request, action, store=store, progress=parameters["progress"] or Silent())
