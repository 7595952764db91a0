"""The public class `Tube`: one tube of a node."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trueup.api.parameters import configuration
from trueup.capture.triggers import backfill, install, pods, tubes
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.install import Installed
from trueup.capture.triggers.model import Attached, Backfill, Ensured, Pod, Stats, TubeInfo
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.tubes import PATIENCE
from trueup.config.load import load
from trueup.config.model import Config, Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Progress, Silent
from trueup.errors import ConfigError
from trueup.nodes.mapping import CompareMap
from trueup.report.model import DiffResult
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.sinks import open_sink
from trueup.sinks.base import Sink
from trueup.store import TaskStore
from trueup.verbs.compare.request import CompareRequest
from trueup.verbs.tube import letters
from trueup.verbs.tube.letters import Letter
from trueup.verbs.tube.model import Job, RunOptions, Summary
from trueup.verbs.tube.restart import run_as_task
from trueup.verbs.tube.target import Target, configured_target, last_target, not_known, recorded
from trueup.verbs.tube_proof.model import TubeProof

if TYPE_CHECKING:
    from trueup.nodes.frame import FrameSource


class Tube:
    """A tube of a node, through one session. Use it as a context manager, or call `close`.

    `node` is a name of the configuration (or of `nodes`), an address, or a Node; it can be omitted if there is only one
    node. The tube itself is created by `ensure`; the functions must have been installed by `Tube.install`.
    """

    def __init__(
        self,
        name: str,
        node: str | Node | None = None,
        *,
        schema: str = "tube",
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
    ) -> None:
        self.name = name
        chosen, self._config = _find_node(node, nodes, config)
        self.session = Session(chosen, schema, self._config.expressions if self._config else None)

    @property
    def config(self) -> Config:
        """The configuration; without one, the node of the tube."""
        node = self.session.node
        return self._config or Config(nodes={node.name: node})

    def __enter__(self) -> Tube:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session, which releases its locks."""
        self.session.close()

    # The tubes of a node.

    @classmethod
    def install(
        cls,
        node: str | Node | None = None,
        *,
        schema: str = "tube",
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
    ) -> Installed:
        """Install the tables and functions of tubes in a schema of a node, or upgrade them."""
        with open_session(node, schema=schema, nodes=nodes, config=config) as session:
            return install.install(session)

    @classmethod
    def uninstall(
        cls,
        node: str | Node | None = None,
        *,
        schema: str = "tube",
        force: bool = False,
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
    ) -> int:
        """Detach all tables, drop the schema with all tubes, and return the number of dropped tubes.

        Raises CheckFailed if pods are waiting, unless `force` is set.
        """
        with open_session(node, schema=schema, nodes=nodes, config=config) as session:
            return install.uninstall(session, force=force)

    @classmethod
    def list(
        cls,
        node: str | Node | None = None,
        *,
        schema: str = "tube",
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
    ) -> tuple[TubeInfo, ...]:
        """Return all tubes of a node with their tables."""
        with open_session(node, schema=schema, nodes=nodes, config=config) as session:
            return tubes.list_tubes(session)

    # The tube and its tables.

    def ensure(
        self,
        *,
        partitions: int | None = None,
        predicate: str | None = None,
        pod_size: int | None = None,
        allow_functions: Sequence[str] = (),
    ) -> Ensured:
        """Create the tube (1 partition, pods of 250 keys), or change those settings of an existing one that are given.

        An empty predicate removes it; `allow_functions` names functions that the predicate may call.
        """
        return tubes.ensure(
            self.session,
            self.name,
            partitions=partitions,
            predicate=predicate,
            pod_size=pod_size,
            allow_functions=allow_functions,
        )

    def drop(self, *, force: bool = False, timeout: float = PATIENCE) -> bool:
        """Drop the tube and return whether it existed; raise CheckFailed if pods are waiting, unless `force` is set."""
        return tubes.drop(self.session, self.name, force=force, patience=timeout)

    def info(self) -> TubeInfo | None:
        """Return the settings and tables of the tube; None if it does not exist."""
        return tubes.find(self.session, self.name)

    def attach(
        self,
        table: str,
        *,
        shard: int | None = None,
        routing: str = "",
        predicate: str | None = None,
        capture: str | None = None,
        allow_functions: Sequence[str] = (),
        timeout: float = PATIENCE,
    ) -> Attached:
        """Attach a table. Without `shard` and `routing`, the shard is the number in the name of schema or table.

        A table that is attached already keeps what is not given; an empty predicate removes its predicate.
        """
        return tubes.attach(
            self.session,
            self.name,
            table,
            shard=shard,
            routing=routing,
            predicate=predicate,
            capture=capture,
            allow_functions=allow_functions,
            patience=timeout,
        )

    def detach(self, table: str, *, timeout: float = PATIENCE) -> bool:
        """Detach a table, keep its waiting pods, and return whether it was attached."""
        return tubes.detach(self.session, self.name, table, patience=timeout)

    def cover(self, *, timeout: float = PATIENCE) -> int:
        """Create the triggers of new partitions; return the number of tables that had new partitions."""
        return tubes.cover(self.session, self.name, patience=timeout)

    def touch(self, table: str, keys: Sequence[object], *, shard: int | None = None) -> int:
        """Put keys into the tube and return the number of pods. A key of several columns is a tuple, or a JSON array.

        Raise QueryError if no row of the table can have one of the keys.
        """
        return tubes.touch(self.session, self.name, table, keys, shard=shard)

    def touch_query(
        self, table: str, query: str, *, shard: int | None = None, allow_functions: Sequence[str] = ()
    ) -> int:
        """Put the keys that a query returns into the tube, in its order, and return the number of pods."""
        return tubes.touch_query(self.session, self.name, table, query, shard=shard, allow_functions=allow_functions)

    def backfill(
        self,
        table: str,
        *,
        order_col: str = "",
        shard: int | None = None,
        timeout: float = 300.0,
        restart: bool = False,
        part_keys: int = 0,
        progress: Progress | None = None,
    ) -> Backfill:
        """Put all keys of a table into the tube, or continue an interrupted backfill; return its final state.

        It waits at most `timeout` seconds for older transactions.
        """
        return backfill.backfill(
            self.session,
            self.name,
            table,
            order_col=order_col,
            shard=shard,
            timeout=timeout,
            restart=restart,
            part_keys=part_keys,
            progress=progress,
        )

    def schedule_backfill(self, table: str, *, order_col: str = "", shard: int | None = None) -> int:
        """Request a backfill from the worker of the tube; return the number of the control pod."""
        return backfill.schedule(self.session, self.name, table, order_col=order_col, shard=shard)

    def stats(self) -> tuple[Stats, ...]:
        """Return the statistics of each partition."""
        return tuple(row for row in tubes.stats(self.session) if row.tube == self.name)

    def backfills(self) -> tuple[Backfill, ...]:
        """Return the last backfill of each table and shard."""
        return tuple(row for row in tubes.backfills(self.session) if row.tube == self.name)

    # Pods, for a worker of your own.

    def lock(self, partition: int = 0, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold the lock of a partition; wait for it at most `wait` seconds."""
        return pods.lock(self.session, self.name, partition, wait=wait)

    def claim(self, partition: int = 0, *, limit: int = 400, skip: Sequence[int] = ()) -> builtins.list[Pod]:
        """Return the next pods of a locked partition, live pods first, without the pods in `skip`."""
        return pods.claim(self.session, self.name, partition, limit=limit, skip=skip)

    def read(self, numbers: Sequence[int]) -> builtins.list[Pod]:
        """Return the pods with these numbers."""
        return pods.read(self.session, self.name, numbers)

    def delete(self, numbers: Sequence[int]) -> int:
        """Delete the pods with these numbers; return how many existed."""
        return pods.delete(self.session, self.name, numbers)

    # The job.

    def run(
        self,
        sink: Sink | str | None = None,
        *,
        sink_options: Mapping[str, str] | None = None,
        partitions: Sequence[int] = (),
        until_empty: bool = False,
        wait: float = 0.0,
        max_pods: int = RunOptions.max_pods,
        max_keys: int = 0,
        max_bytes: int = RunOptions.max_bytes,
        attempts: int = RunOptions.attempts,
        retry_pause: float = RunOptions.retry_pause,
        spark: SparkSettings | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        task_db: str | None = None,
    ) -> Summary:
        """Keep a sink in step with the tube until `stop` is set, or with `until_empty` until the tube is empty.

        The sink is an object, an address, or the name of a node of the configuration; by default the one of its section
        [tube.NAME]. The job is recorded in the task store. After an error or a kill, the pods that were not
        acknowledged stay in the tube. `spark` is by default the section [spark] of the configuration: threads begin,
        and Spark takes over after `local_seconds`, or from the first batch on if this program has a session or a master
        is configured.
        """
        config = self._config
        target = self._target(sink, sink_options)
        opened = self._open(target)
        try:
            options = RunOptions(
                partitions=tuple(pods.partitions_to_hold(self.session, self.name, partitions)),
                until_empty=until_empty,
                wait=wait,
                max_pods=max_pods,
                max_keys=max_keys,
                max_bytes=max_bytes,
                attempts=attempts,
                retry_pause=retry_pause,
                spark=spark or (config.spark if config else SparkSettings()),
            )
            job = Job(
                self.session,
                self.name,
                opened,
                options,
                Hold(self.session, self.name, options.partitions),
                progress or Silent(),
                stop or threading.Event(),
            )
            return run_as_task(
                job,
                sink=recorded(target, self.session) if isinstance(target, Target) else {"sink": type(target).__name__},
                task_db=task_db,
                configured=config.tasks.task_db if config else "",
            )
        finally:
            opened.close()

    def prove(
        self,
        sink: Sink | str | None = None,
        *,
        sink_options: Mapping[str, str] | None = None,
        max_diff_rows: int | None = None,
        recheck: int | None = None,
        recheck_wait: float | None = None,
        report_dir: str | None = None,
        spark: SparkSettings | None = None,
        progress: Progress | None = None,
        task_db: str | None = None,
    ) -> TubeProof:
        """Compare the tables of the tube with a sink, which is named as for `run`; nothing is written to either.

        Without one, it is the sink of the section [tube.NAME] of the configuration, else the one of the last run of
        this tube that the task store has. Raises ConfigError if there is none, or if its password is not known.

        Keys that are in the tube are in flight, and not differences. Tables of a sink are compared by digests, each
        with a report as of `trueup.diff`; documents are read in batches. Raises ConfigError for a sink whose documents
        cannot be read.
        """
        # Arrow, which this uses, takes longer to import than the other verbs of a tube take.
        from trueup.verbs.compare import run as compare_run
        from trueup.verbs.tube_proof import run as tube_proof

        config = self._config or Config()
        changes = {"max_diff_rows": max_diff_rows, "recheck": recheck, "recheck_wait": recheck_wait}
        given: dict[str, Any] = {**changes, "report_dir": report_dir}
        given = {name: value for name, value in given.items() if value is not None}
        with TaskStore(task_db, configured=config.tasks.task_db) as store:
            chosen = self._target(sink, sink_options, store)
            opened = self._open(chosen)
            try:

                def compare(
                    table: TableRequest,
                    mapping: CompareMap,
                    sources: Mapping[str, FrameSource],
                    in_flight: Callable[[Collection[KeyValues]], Collection[KeyValues]],
                ) -> DiffResult:
                    request = CompareRequest(table, {}, mapping, sources, has_checked_queries=True, in_flight=in_flight)
                    return compare_run.run(request, store=store, progress=progress)

                return tube_proof.prove(
                    self.session,
                    self.name,
                    opened,
                    settings=replace(config.diff, **given).validated(),
                    spark=spark or config.spark,
                    compare=compare,
                    dead_letters=len(self.dead_letters()),
                    shown_sink=chosen.shown if isinstance(chosen, Target) else type(chosen).__name__,
                )
            finally:
                opened.close()

    def _target(
        self, sink: Sink | str | None, options: Mapping[str, str] | None, store: TaskStore | None = None
    ) -> Target | Sink:
        """Return the sink: the given one, that of the configuration or, with a task store, that of the last run."""
        if sink is not None:
            return Target(sink, options or {}) if isinstance(sink, str) else sink
        target = configured_target(self.name, self.config.path)
        if target is None and store is not None:
            target = last_target(self.name, self.session, store)
        if target is None:
            raise not_known(self.name)
        return target.with_options(options)

    def _open(self, sink: Target | Sink) -> Sink:
        """Return a sink that connects in its `setup`."""
        if not isinstance(sink, Target):
            return sink
        return open_sink(sink.address, sink.options, nodes=self._config.nodes if self._config else {})

    # Dead letters.

    def dead_letters(self, *, keys: Sequence[str] | None = None, limit: int = 1000) -> builtins.list[Letter]:
        """Return the keys that could not be delivered, newest first: all, or only `keys`."""
        return letters.letters(self.session, self.name, keys=keys, limit=limit)

    def retry_letters(self, *, keys: Sequence[str] | None = None) -> int:
        """Let the worker of the tube deliver dead letters again; return how many."""
        return letters.retry(self.session, self.name, keys=keys)

    def drop_letters(self, *, keys: Sequence[str] | None = None) -> int:
        """Delete dead letters; return how many."""
        return letters.drop(self.session, self.name, keys=keys)


def open_session(
    node: str | Node | None = None,
    *,
    schema: str = "tube",
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
) -> Session:
    """Open a session with the tubes of a node, which is named as for `Tube`."""
    chosen, loaded = _find_node(node, nodes, config)
    return Session(chosen, schema, loaded.expressions if loaded else None)


def _find_node(
    node: str | Node | None, nodes: Mapping[str, str] | None, config: Config | str | None
) -> tuple[Node, Config | None]:
    if isinstance(node, Node) and config is None:
        return node, None
    loaded = configuration(config, nodes)
    if isinstance(node, Node):
        return node, loaded
    if node and "://" in node:
        return load(nodes={"node": node}).nodes["node"], loaded
    chosen = loaded.select(names=[node] if node else [*(nodes or ())], at_least=1)
    if len(chosen) > 1:
        names = ", ".join(candidate.name for candidate in chosen)
        raise ConfigError(f"tubes are on one node, but several are configured: {names}", cure="choose one: --on NAME")
    return chosen[0], loaded
