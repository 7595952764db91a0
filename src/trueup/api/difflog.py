"""The signed version log as a Python API: `DiffLog`, and `difflog_step` for DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from trueup.config.load import load_spark
from trueup.engine.bulk_session import spark_session
from trueup.engine.failures import OR_LOCAL
from trueup.engine.parquet_files import reader_of
from trueup.engine.progress import Progress
from trueup.errors import ConfigError, EngineError
from trueup.store import TaskStore
from trueup.task.open import OpenTask, open_task
from trueup.verbs.difflog.abandon import abandon
from trueup.verbs.difflog.chunks import is_small
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.mark import check_owner
from trueup.verbs.difflog.migrate import Migration, migrate
from trueup.verbs.difflog.model import DiffLogConfig, Rule, RuleName, StepOptions
from trueup.verbs.difflog.record import check_log, with_history
from trueup.verbs.difflog.result import RunResult
from trueup.verbs.difflog.run import is_small_run, run
from trueup.verbs.difflog.state import StateTable, state_rows
from trueup.verbs.difflog.steps.step import Step, whole_step
from trueup.verbs.difflog_ends.join_files import JoinResult, check_files, join_files
from trueup.verbs.difflog_ends.judge import Proof
from trueup.verbs.difflog_ends.prove import EXAMPLES, is_small_proof, prove_clickhouse, prove_log, with_computed
from trueup.verbs.difflog_ends.prune import Pruned, prune
from trueup.verbs.difflog_ends.recompute import recomputed
from trueup.verbs.difflog_ends.status import DiffLogStatus, status

_CONTINUES = "run the command again: it continues after the last complete output"

T = TypeVar("T")
File = str | PathLike[str]


class DiffLog:
    """A signed version log. The object holds no lock and no connection between calls; each call is a recorded task.

    A call uses the Spark session `spark`, else the session of this process, and does not stop or change it. Else it
    starts a session, and stops it at the end of the call.
    """

    def __init__(
        self,
        config: File | DiffLogConfig | None = None,
        *,
        spark: SparkSession | None = None,
        master: str = "",
        remote: str = "",
        conf: Mapping[str, str] | None = None,
        task_db: str | None = None,
        insecure: bool = False,
    ) -> None:
        """Load the configuration: a file, else $TRUEUP_DIFFLOG, ./difflog.toml, or [difflog] in trueup.toml.

        `spark` is your own session; without it, `master`, `remote` and `conf` take precedence over [spark] of
        trueup.toml. `insecure` allows to send the password of ClickHouse to another machine without TLS. Raises
        ConfigError that lists all wrong settings.
        """
        if spark is not None and (master or remote or conf):
            raise ConfigError("spark cannot be used with master, remote or conf", cure="configure your own session")
        file = None if config is None or isinstance(config, DiffLogConfig) else str(config)
        if not isinstance(config, DiffLogConfig):
            config = load_difflog(None if config is None else str(config))
        if insecure:
            config = replace(config, target=replace(config.target, insecure=True))
        self.config: DiffLogConfig = config
        shared = load_spark(file)
        place = (master, remote) if master or remote else (shared.master, shared.remote)
        merged = {**shared.conf, **(conf or {})}
        self._spark = replace(shared, master=place[0], remote=place[1], conf=merged).validated()
        self._session = spark
        self._task_db = task_db

    def join(self, *, visits: Sequence[File], logs: Mapping[str, Sequence[File]] | None = None) -> JoinResult:
        """Join raw visits and raw side logs (Parquet) into a new chunk set; the result names it and counts its rows.

        Writes the complete set or nothing. Raises CheckFailed if a file cannot be read, or was joined before.
        """
        raw = [str(path) for path in visits]
        sides = {name: [str(path) for path in paths] for name, paths in (logs or {}).items()}

        # Before Spark starts, which takes seconds.
        _, files = check_files(visits=raw, logs=sides)

        def work(session: SparkSession, _: Progress) -> JoinResult:
            return join_files(session, self.config, visits=raw, logs=sides)

        context = {"work": self.config.work, "visits": raw}
        return self._as_task("DIFFLOG_JOIN", context, work, asdict, small=lambda: is_small(files))

    def run(
        self, *, chunks: Sequence[str] = (), rejoin_late: bool = False, progress: Progress | None = None
    ) -> RunResult:
        """Process the named chunk sets (default: all that wait), or finish the run that was interrupted.

        After an error or a kill, the next call continues after the last complete output.
        """

        def work(session: SparkSession, shown: Progress) -> RunResult:
            return run(session, self.config, names=chunks, rejoin_late=rejoin_late, progress=shown)

        late = "rejoin" if rejoin_late else "keep"
        context = {"chunks": list(chunks), "late": late, "work": self.config.work}
        small = partial(is_small_run, self.config, chunks)
        return self._as_task("DIFFLOG_RUN", context, work, asdict, progress, small=small)

    def abandon(self) -> int:
        """Give up an unfinished run, and return its number; 0 if there is none. Its chunk sets wait again.

        Raises StoreError if its states are in the state table: then it can only be finished.
        """
        return abandon(self.config)

    def prove(
        self,
        *,
        fast_log: Sequence[File] = (),
        limit: int = EXAMPLES,
        to: File | None = None,
        recompute: bool = True,
    ) -> Proof:
        """Prove that every key collapses to one row, the one in the state table.

        Checks the ClickHouse table; with `fast_log` (the signed rows of the fast supplier as Parquet), the logs. Unless
        `recompute` is false, the states are computed again from the chunk sets. The proof has at most `limit` examples;
        every key with a problem is written to the file `to`, as JSON lines.
        """
        paths = [str(Path(path).absolute()) for path in fast_log]
        file = None if to is None else Path(to)

        def work(session: SparkSession, _: Progress) -> Proof:
            record = check_log(self.config)
            if record and not paths:
                check_owner(self.config, record)
            config = with_history(self.config, record)
            altered = StateTable.of(config).altered()
            state, last = _last_states(session, config)
            with recomputed(session, config, state, last) if recompute else nullcontext() as computed:
                if paths:
                    slow = slow_log(session, config)
                    fast = session.read.parquet(*paths)
                    proof = prove_log(fast, slow, config, state, limit=limit, to=file, computed=computed)
                else:
                    proof = prove_clickhouse(session, config, state, limit=limit, to=file, computed=computed)
            why_not = "no run has its chunk sets any more" if recompute else "as requested"
            return with_computed(proof, computed, why_not=why_not).with_altered(altered)

        small = partial(is_small_proof, self.config, paths)
        return self._as_task("DIFFLOG_PROVE", {"work": self.config.work}, work, Proof.as_json, small=small)

    def status(self) -> DiffLogStatus:
        """Return the last run, what waits for the next one, and the size of the state table, without Spark."""
        return status(self.config)

    def migrate(self, *, execute: bool = False) -> Migration:
        """Change the log to settings that were changed in the configuration; without `execute`, only show the changes.

        A migration that is killed is finished or rolled back by the next call of `run` or `migrate`.
        """

        def work(session: SparkSession, _: Progress) -> Migration:
            return migrate(session, self.config, execute=execute)

        return self._as_task("DIFFLOG_MIGRATE", {"work": self.config.work, "execute": execute}, work, asdict)

    def prune(self, *, keep: int, execute: bool = False) -> Pruned:
        """Remove outputs and chunk sets of all but the last `keep` runs; without `execute`, only show them."""
        with self._task("DIFFLOG_PRUNE", {"work": self.config.work, "keep": keep, "execute": execute}) as task:
            result = prune(self.config, keep=keep, execute=execute)
            task.finish(asdict(result))
        return result

    def _as_task(
        self,
        task_type: str,
        context: Mapping[str, object],
        work: Callable[[SparkSession, Progress], T],
        summary: Callable[[T], Mapping[str, object]],
        progress: Progress | None = None,
        small: Callable[[], bool] = lambda: False,
    ) -> T:
        """Run the work with a Spark session, as a task of the task store; `small`: it reads few bytes."""
        with self._task(task_type, context, progress) as task:
            with spark_session(self._spark, self._session, small=small()) as session:
                result = work(session, task.progress)
            task.finish(summary(result))
        return result

    @contextmanager
    def _task(
        self, task_type: str, context: Mapping[str, object], progress: Progress | None = None
    ) -> Iterator[OpenTask]:
        """Yield a new task of the task store."""
        again = _CONTINUES if task_type in ("DIFFLOG_RUN", "DIFFLOG_MIGRATE") else "run the command again"
        with (
            _cures_for_spark(),
            TaskStore(self._task_db) as store,
            open_task(
                store,
                task_type,
                on_interrupt=again,
                table=self.config.entity.name,
                context=context,
                progress=progress,
            ) as task,
        ):
            yield task


def _last_states(session: SparkSession, difflog: DiffLogConfig) -> tuple[DataFrame | None, int]:
    """Return the states, and the run that wrote them; another process may commit a run meanwhile."""
    table = StateTable.of(difflog)
    while True:
        last = table.last_run()
        state = state_rows(session, difflog)
        if table.last_run() == last:
            return state, last


@contextmanager
def _cures_for_spark() -> Iterator[None]:
    """Let an error of Spark not name the other engine, which a version log does not have."""
    try:
        yield
    except EngineError as error:
        error.cure = error.cure.replace(OR_LOCAL, "")
        raise


def difflog_step(
    previous: DataFrame,
    updates: DataFrame,
    *,
    key: Sequence[str],
    fast_version: str,
    rules: Mapping[str, RuleName | Rule] | None = None,
    deleted: str = "",
    order_by: str = "",
    multiplier: int = 1000,
    rejoin_late: bool = False,
) -> Step:
    """Return the signed log and the new states of one step, as lazy DataFrames.

    `previous` has the key, the fast version, `SlowVersion` and the columns of the state; `updates` has the key, the
    fast version and any columns, including new ones. Updates older than the state are in `Step.late`.
    """
    merged = {name: rule if isinstance(rule, Rule) else Rule(rule) for name, rule in (rules or {}).items()}
    options = StepOptions(tuple(key), fast_version, merged, deleted, order_by, multiplier, rejoin_late)
    return whole_step(previous, updates, options)


def slow_log(session: SparkSession, difflog: DiffLogConfig) -> DataFrame:
    """Return all signed rows that the runs have written."""
    runs = [log_run for log_run in Runs(Path(difflog.work)).all() if log_run.has("visit_log_wide")]
    if not runs:
        raise ConfigError("no run has written a log yet: nothing can be proven", cure="trueup difflog run")
    for log_run in runs:
        if log_run.facts.get("pruned") or not log_run.path("visit_log_wide").exists():
            raise ConfigError(
                f"{log_run.path('visit_log_wide')} was removed: the log of run {log_run.number} is missing",
                cure="prove the ClickHouse table: trueup difflog prove, without --fast-log",
            )
    folders = [log_run.path("visit_log_wide") for log_run in runs]
    files = [file for folder in folders for file in folder.glob("*.parquet")]
    return reader_of(session, files).parquet(*map(str, folders))
