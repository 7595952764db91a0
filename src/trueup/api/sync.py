"""`trueup.Sync`: a sync between two nodes from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from trueup.api.diff import settings_of
from trueup.api.parameters import configuration
from trueup.config.model import Config, Node
from trueup.engine.progress import Progress, Silent
from trueup.errors import ConfigError
from trueup.store import TaskStore
from trueup.task.open import OpenTask, open_task
from trueup.verbs.sync import ending, status
from trueup.verbs.sync import run as path
from trueup.verbs.sync.ending import Dropped
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.status import SyncStatus
from trueup.verbs.sync.totals import Totals, Until
from trueup.verbs.sync_ddl import apply_ddl, change_tables
from trueup.verbs.sync_ddl.accept import accept
from trueup.verbs.sync_ddl.apply_ddl import Applied
from trueup.verbs.sync_ddl.change import Differences


def two_nodes(
    source: str, target: str, config: Config | str | None, nodes: Mapping[str, str] | None
) -> tuple[Config, Node, Node]:
    """Return the configuration and two of its nodes; raise ConfigError if one is unknown or both are the same."""
    loaded = configuration(config, nodes)
    if source == target:
        raise ConfigError("--from and --to name the same node", cure="name two different nodes")
    first, second = loaded.select(names=[source, target])
    return loaded, first, second


class Sync:
    """The sync `name` from one node to another.

    The nodes are names in the configuration or in `nodes` (name -> address). The object keeps no connection between
    calls: another process may use an equal object. Every method raises a TrueupError if it fails.
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
        exclude_tables: Sequence[str] = (),
        create_schema: bool = False,
        create_roles: bool = False,
        no_owner: bool = False,
        pg_bin: str = "",
        engine: Literal["auto", "spark", "local"] | None = None,
        master: str | None = None,
        remote: str | None = None,
        concurrency_factor: float = 1.0,
        max_connections: int | None = None,
        task_db: str | None = None,
    ) -> None:
        """Check the arguments; they mean the same as the options of `trueup sync`.

        `tables` and `exclude_tables` are names or patterns with `*` and `?`; without `tables`, the whole database is
        synced. Settings that are None come from the configuration.
        """
        options = locals()
        self.config, first, second = two_nodes(source, target, config, nodes)
        self._task_db = task_db
        load, spark = settings_of(self.config, options)
        self._request = SyncRequest(
            first,
            second,
            Scope(name, tuple(tables), tuple(exclude_tables), create_schema, create_roles, no_owner),
            spark,
            load.concurrency_factor,
            load.max_connections,
            pg_bin=pg_bin,
        )

    def plan(self) -> Plan:
        """Return what `start` would do and what cannot be handled; write nothing."""
        return path.plan(self._request)

    def start(self, *, timeout: float = 300.0, progress: Progress | None = None) -> Plan:
        """Record changes from now on and copy all rows; return the plan. After a kill, call it again to continue.

        `timeout` limits the seconds to wait for the lock on each table, and for transactions that began earlier.
        """
        with self._task("SYNC_START", "run the same command again", progress) as task:
            plan = path.start(replace(self._request, timeout=timeout), task.progress)
            task.finish({"tables": len(plan.tables), "rows": plan.rows})
            return plan

    def run(
        self,
        how: Literal["close", "follow", "once"] = "close",
        *,
        close_keys: int = 1000,
        close_seconds: float = 1.0,
        interval: float = 0.2,
        follow_ddl: bool = False,
        progress: Progress | None = None,
    ) -> Totals:
        """Apply changes in rounds and return the totals.

        `close` ends when a round had at most `close_keys` keys, took at most `close_seconds` seconds, and left nothing;
        `follow` ends when `stop` is called elsewhere; `once` is one round. With `follow_ddl`, changes of the tables are
        applied on the target as `apply_ddl` does, except what drops something there.
        """
        until = Until(how == "once", how == "follow", close_keys, close_seconds, interval)
        with self._task("SYNC_RUN", "no change is lost; run the same command again") as task:
            shown = progress or Silent()
            follower = apply_ddl.Follower(self._request, shown) if follow_ddl else None
            totals = path.run(self._request, until, shown, task.heartbeat, follower)
            task.finish(totals.as_json())
            return totals

    def status(self) -> SyncStatus:
        """Return how far the sync is; write nothing."""
        return status.status(self._request)

    def add(
        self, tables: Sequence[str], *, timeout: float = 300.0, progress: Progress | None = None
    ) -> tuple[str, ...]:
        """Add tables to the started sync, or copy tables of it again, and return their names when they are copied.

        A running sync copies them, else this call does. `tables` are names or patterns. After a kill, call it again.
        `timeout` limits the seconds to wait for each lock, for older transactions, and for the running sync.
        """
        request = replace(self._request, timeout=timeout)
        with self._task("SYNC_ADD", "run the same command again", progress) as task:
            added = change_tables.add(request, tables)
            while not change_tables.wait_until_copied(request, added, timeout=timeout):
                totals = path.run(request, Until(once=True), task.progress, task.heartbeat)
                change_tables.refuse_aside(totals.aside, added)
            task.finish({"tables": len(added)})
            return tuple(map(str, added))

    def remove(self, tables: Sequence[str], *, timeout: float = 30.0) -> tuple[str, ...]:
        """Remove tables from the started sync and return their names; their rows on the target stay."""
        return change_tables.remove(self._request, tables, timeout=timeout)

    def ddl(self) -> Differences:
        """Return the statements that make the tables of the target like those of the source; write nothing."""
        return apply_ddl.differences(self._request)

    def apply_ddl(self, *, timeout: float = 30.0) -> list[Applied]:
        """Apply these statements on the target, one transaction per table, and return what became of them.

        Tables that were dropped on the source are dropped too. New tables are added to the sync, and the next rounds
        copy their rows. `timeout` limits the seconds to wait for the locks of each table.
        """
        return apply_ddl.apply(self._request, drops=True, timeout=timeout)[0]

    def stop(self, *, timeout: float = 60.0) -> bool:
        """End the running sync after its round; return whether one was running."""
        return ending.stop(self._request, timeout=timeout)

    def accept(self, tables: Sequence[str] = ()) -> str:
        """Continue after a failover or a restore that lost rows; return what was accepted, or "" if nothing was lost.

        Call it after all tables were compared and repaired. `tables` are names or patterns of tables that were replaced
        on the target, for example by a restore from a dump: these are accepted only if they are named.
        """
        return accept(self._request, tables)

    def drop(self, *, timeout: float = 30.0, without_source: bool = False, without_target: bool = False) -> Dropped:
        """Remove the change log and the state of the sync; return what existed. The copied rows stay.

        `without_source` or `without_target`: that database is lost, and only the other one is cleared.
        """
        return ending.drop(self._request, timeout=timeout, without_source=without_source, without_target=without_target)

    @contextmanager
    def _task(self, task_type: str, on_interrupt: str, progress: Progress | None = None) -> Iterator[OpenTask]:
        """Run the block as a task of the task store."""
        request = self._request
        context = {
            "sync": request.name,
            "from": request.source.name,
            "to": request.target.name,
            "tables": list(request.scope.tables),
            "create_schema": request.scope.create_schema,
        }
        with (
            TaskStore(self._task_db, configured=self.config.tasks.task_db) as store,
            open_task(store, task_type, context=context, on_interrupt=on_interrupt, progress=progress) as task,
        ):
            yield task
