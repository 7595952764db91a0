"""Tubes as Python calls: `trueup.tube.open(node)` gives all that can be asked of the tubes of a node."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from trueup.capture.triggers import backfill, install, pods, tubes
from trueup.capture.triggers.install import VERSION
from trueup.capture.triggers.model import Attached, Backfill, Pod, Pods, Stats, TubeInfo
from trueup.capture.triggers.session import Session
from trueup.config.load import load
from trueup.config.model import Config, Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Progress, Silent
from trueup.errors import ConfigError
from trueup.verbs.tube import letters
from trueup.verbs.tube.letters import Letter
from trueup.verbs.tube.run import Limits, Summary

if TYPE_CHECKING:
    from trueup.sinks.base import Sink

__all__ = [
    "VERSION",
    "Attached",
    "Backfill",
    "Letter",
    "Limits",
    "Pod",
    "Stats",
    "Summary",
    "TubeInfo",
    "Tubes",
    "open",
]

PATIENCE = 30.0
# Where `list` is something else.
Letters: TypeAlias = "list[letters.Letter]"


def open(
    node: str | Node | None = None,
    *,
    schema: str = "tube",
    addresses: Mapping[str, str] | None = None,
    config: Config | str | None = None,
) -> Tubes:
    """The tubes of a node: by its name (in the configuration or `addresses`), its address, or the only one there is."""
    if isinstance(node, str) and "://" in node:
        node = load(nodes={"node": node}).nodes["node"]
    if isinstance(node, Node):
        return Tubes(node, schema)
    loaded = config if isinstance(config, Config) else load(config, nodes=addresses)
    chosen = loaded.select(names=[node] if node else list(addresses or ()), at_least=1)
    if len(chosen) > 1:
        names = ", ".join(each.name for each in chosen)
        raise ConfigError(f"tubes are on one node, and there are {names}", cure="say which one: --on NAME")
    return Tubes(chosen[0], schema)


class Tubes:
    """The tubes of one node, through one session; a context manager that ends it."""

    def __init__(self, node: Node, schema: str = "tube") -> None:
        self.session = Session(node, schema)

    def __enter__(self) -> Tubes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and the locks with it."""
        self.session.close()

    def install(self) -> install.Installed:
        """Put the functions into the schema, or bring them to this version."""
        return install.install(self.session)

    def uninstall(self, *, force: bool = False) -> int:
        """Detach all tables and drop the schema; gives the number of tubes that were there."""
        return install.uninstall(self.session, force=force)

    def ensure(self, tube: str, *, partitions: int = 1, predicate: str = "", pod_size: int = 250) -> None:
        """Make a tube, or give it these settings."""
        tubes.ensure(self.session, tube, partitions=partitions, predicate=predicate, pod_size=pod_size)

    def drop(self, tube: str, *, force: bool = False, patience: float = PATIENCE) -> bool:
        """Drop a tube; whether there was one."""
        return tubes.drop(self.session, tube, force=force, patience=patience)

    def attach(
        self,
        tube: str,
        table: str,
        *,
        shard: int | None = None,
        routing: str = "",
        predicate: str = "",
        capture: str = "statement",
        patience: float = PATIENCE,
    ) -> Attached:
        """Attach a table; without shard and routing, its name has the number."""
        return tubes.attach(
            self.session,
            tube,
            table,
            shard=shard,
            routing=routing,
            predicate=predicate,
            capture=capture,
            patience=patience,
        )

    def detach(self, tube: str, table: str, *, patience: float = PATIENCE) -> bool:
        """Detach a table; whether it was attached."""
        return tubes.detach(self.session, tube, table, patience=patience)

    def touch(self, tube: str, table: str, keys: Sequence[object], *, shard: int | None = None) -> int:
        """Touch keys by hand; gives the number of pods."""
        return tubes.touch(self.session, tube, table, [str(key) for key in keys], shard=shard)

    def touch_query(self, tube: str, table: str, query: str, *, shard: int | None = None) -> int:
        """Touch all keys that a query finds, in its order; gives the number of pods."""
        return tubes.touch_query(self.session, tube, table, query, shard=shard)

    def cover(self, tube: str | None = None, *, patience: float = PATIENCE) -> int:
        """Give partitions that are new their triggers; the number of tables that had some."""
        return tubes.cover(self.session, tube, patience=patience)

    def backfill(
        self,
        tube: str,
        table: str,
        *,
        order_col: str = "",
        shard: int | None = None,
        timeout: float = 300.0,
        restart: bool = False,
        part_keys: int = 0,
        progress: Progress | None = None,
    ) -> Backfill:
        """Put all keys of a table into the tube, or go on with it; `timeout` is that of the barrier, in seconds."""
        return backfill.backfill(
            self.session,
            tube,
            table,
            order_col=order_col,
            shard=shard,
            timeout=timeout,
            restart=restart,
            part_keys=part_keys,
            progress=progress or Silent(),
        )

    def schedule_backfill(self, tube: str, table: str, *, order_col: str = "", shard: int | None = None) -> int:
        """Ask whoever works on the tube for a backfill, by a control pod; gives its number."""
        name = self.session.find_table(table)
        number: int = self.session.call("tube_backfill_schedule", tube, name, order_col or None, shard)
        return number

    def list(self) -> tuple[TubeInfo, ...]:
        """All tubes with their tables."""
        return tubes.list_tubes(self.session)

    def stats(self) -> tuple[Stats, ...]:
        """What waits, partition by partition."""
        return tubes.stats(self.session)

    def backfills(self) -> tuple[Backfill, ...]:
        """The last backfill of each table and shard."""
        return tubes.backfills(self.session)

    def claim(self, tube: str, partition: int = 0, *, most: int = 400, skip: Sequence[int] = ()) -> Pods:
        """The next pods of a partition, live first, without those in `skip`; hold its lock."""
        return pods.claim(self.session, tube, partition, most=most, skip=skip)

    def read(self, tube: str, numbers: Sequence[int]) -> Pods:
        """Exactly these pods again."""
        return pods.read(self.session, tube, numbers)

    def delete(self, tube: str, numbers: Sequence[int]) -> int:
        """Delete exactly these pods; gives how many were there."""
        return pods.delete(self.session, tube, numbers)

    def lock(self, tube: str, partition: int = 0, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold the lock of a partition, waiting at most so many seconds for it."""
        return pods.lock(self.session, tube, partition, wait=wait)

    def run(
        self,
        tube: str,
        sink: Sink | str,
        *,
        options: Mapping[str, str] | None = None,
        nodes: Mapping[str, Node] | None = None,
        partitions: Sequence[int] = (),
        until_empty: bool = False,
        wait: float = 0.0,
        limits: Limits | None = None,
        spark: SparkSettings | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        task_db: str | None = None,
        configured: str = "",
    ) -> Summary:
        """Keep a sink (or the address of one, or the name of one of `nodes`) in step with a tube, until `stop` is set.

        With `until_empty` it ends when the tube is empty. The job is in the task store.
        """
        from trueup.sinks import open_sink
        from trueup.verbs.tube.job import Running, run_as_task

        limits = limits or Limits()
        opened = open_sink(sink, options, nodes=nodes) if isinstance(sink, str) else sink
        try:
            running = Running(
                self.session,
                tube,
                opened,
                partitions=partitions,
                limits=replace(limits, until_empty=True) if until_empty else limits,
                spark=spark or SparkSettings(engine="local"),
                wait=wait,
                progress=progress or Silent(),
                stop=stop or threading.Event(),
            )
            name = sink if isinstance(sink, str) else type(sink).__name__
            return run_as_task(running, sink_name=name, task_db=task_db, configured=configured)
        finally:
            opened.close()

    def dead_letters(self, tube: str, *, keys: Sequence[str] | None = None, most: int = 1000) -> Letters:
        """Keys that could not be delivered, newest first: all, or those whose text is given."""
        return letters.letters(self.session, tube, keys=keys, most=most)

    def retry_letters(self, tube: str, *, keys: Sequence[str] | None = None) -> int:
        """Have dead letters tried again by whoever works on the tube; gives how many."""
        return letters.retry(self.session, tube, keys=keys)

    def drop_letters(self, tube: str, *, keys: Sequence[str] | None = None) -> int:
        """Forget dead letters; gives how many."""
        return letters.drop(self.session, tube, keys=keys)
