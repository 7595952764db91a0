"""A sync between two nodes as one Python object: copy, rounds, switchover and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trueup.api import switchover as call
from trueup.api import sync_calls as sync_call
from trueup.config.load import load
from trueup.config.model import Config
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.start import SyncRequest

if TYPE_CHECKING:
    from trueup.engine.progress import Progress
    from trueup.verbs.switchover.ending import Ended
    from trueup.verbs.switchover.outcome import Outcome
    from trueup.verbs.switchover.status import SwitchStatus
    from trueup.verbs.sync.model import Plan


class Sync:
    """The sync `name` from one node to another; the nodes are named in the configuration or in `nodes`.

    Options are those of `trueup sync` and `trueup switchover`, with underscores. Nothing is kept open between calls:
    another process may hold an equal object.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        name: str = "main",
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
        tables: Sequence[str] = (),
        leave_out: Sequence[str] = (),
        create_schema: bool = False,
        task_db: str | None = None,
        **options: Any,
    ) -> None:
        self.source, self.target, self.name = source, target, name
        self._config = config if isinstance(config, Config) else load(config, nodes=nodes)
        self._task_db = task_db
        self._given: dict[str, Any] = {
            **options, "tables": tables, "leave_out": leave_out, "create_schema": create_schema,
        }  # fmt: skip
        self._request()

    def plan(self) -> Plan:
        """What `start` would do, and what cannot be handled; nothing is written."""
        return sync.plan(self._request())

    def start(self, *, progress: Progress | None = None) -> Plan:
        """Record changes from now on, and copy all rows; called again after a kill, it goes on."""
        return sync_call.start(self._request(), self._config, task_db=self._task_db, progress=progress)

    def run(
        self,
        how: Literal["close", "follow", "once"] = "close",
        *,
        close_keys: int = 1000,
        close_seconds: float = 1.0,
        interval: float = 0.2,
        progress: Progress | None = None,
    ) -> sync.Totals:
        """Carry changes over: until little is left, until `stop` is called elsewhere, or one round."""
        until = sync.Until(how == "once", how == "follow", close_keys, close_seconds, interval)
        return sync_call.run(self._request(), self._config, until, task_db=self._task_db, progress=progress)

    def status(self) -> sync.State:
        """How far it is."""
        return sync.status(self._request())

    def stop(self, *, timeout: float = 60.0) -> bool:
        """End whoever carries changes over, after its round; whether there was somebody."""
        return sync.stop(self._request(), timeout=timeout)

    def drop(self) -> tuple[bool, bool]:
        """Take triggers, change log and notes away; the rows stay. Whether there was a log, and a sync."""
        return sync.drop(self._request())

    def prepare(self, **options: Any) -> tuple[str, int]:
        """Put pointers and guards into both databases; gives which one is in use, and how many guards were put on."""
        return call.prepare(self.source, self.target, **self._with(options))

    def execute(self, *, progress: Progress | None = None, **options: Any) -> Outcome:
        """Move the applications over. Options: `budget`, `proof`, `close_keys`, `patience`, …"""
        return call.execute(self.source, self.target, task_db=self._task_db, progress=progress, **self._with(options))

    def rollback(self, *, progress: Progress | None = None, **options: Any) -> Outcome:
        """Move the applications back, with all that was written meanwhile."""
        return call.rollback(self.source, self.target, task_db=self._task_db, progress=progress, **self._with(options))

    def switchover_status(self) -> SwitchStatus:
        """Which database is in use, the phase, who holds what."""
        return call.status(self.source, self.target, **self._with({}))

    def abort(self) -> Ended:
        """End a switchover that is under way."""
        return call.abort(self.source, self.target, **self._with({}))

    def reset(self, **options: Any) -> Ended:
        """Take pointer, guards and the way back away; the sync stays."""
        return call.reset(self.source, self.target, **self._with(options))

    def finish(self, *, keep_refusal: bool = False, **options: Any) -> Ended:
        """Take all of trueup out of both databases."""
        return call.finish(self.source, self.target, keep_refusal=keep_refusal, **self._with(options))

    def _request(self) -> SyncRequest:
        return sync_call.request_of(self.source, self.target, name=self.name, config=self._config, **self._given)[0]

    def _with(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "name": self.name, "config": self._config}
