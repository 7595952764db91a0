"""A job from start to end: it is recorded as a task, takes the locks, and starts again after the node was lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

from trueup.capture.triggers import tubes
from trueup.engine.failures import is_interrupted, known_error, uninterrupted
from trueup.engine.lasting import LastingSpark
from trueup.engine.slots import cores_here
from trueup.engine.spark import SparkEngine
from trueup.errors import CheckFailed, EngineError, NodeError, QueryError, TrueupError
from trueup.sinks.base import CommittingSink, SplittingSink
from trueup.store import TaskStore
from trueup.task.open import OpenTask, open_task
from trueup.verbs.tube.hand_over import HandOverPipeline
from trueup.verbs.tube.model import Job, Stopped, Summary
from trueup.verbs.tube.pace import Pause
from trueup.verbs.tube.pipeline import LocalPipeline, Pipeline, pickled
from trueup.verbs.tube.pipeline_spark import SparkPipeline, deliver_task
from trueup.verbs.tube.run import Run

_PAUSED = "paused (continue with trueup tasks resume)"
_PAUSED_SECONDS = 0.5
_MAX_THREADS = 4
# Classes of temporary errors: conflicts, resources, locks, operator intervention.
_TEMPORARY = ("40", "53", "55", "57")
# Seconds to wait for the locks after an outage: the server may not have noticed yet that the old session is gone.
_RELOCK_SECONDS = 60.0
# After this time without an error, pauses are short again.
_STABLE_SECONDS = 60.0


def run_as_task(job: Job, *, sink: Mapping[str, object], task_db: str | None, configured: str = "") -> Summary:
    """Run a job and record it in the task store: who runs it, its sink, its progress, its result. It may be stopped."""
    request = {
        "tube": job.tube,
        "node": job.session.node.name,
        "partitions": list(job.hold.partitions),
        **sink,
    }
    with (
        TaskStore(task_db, configured=configured) as store,
        open_task(
            store, "TUBE_RUN", table=job.tube, context=request, on_interrupt="start it again: no change is lost"
        ) as task,
    ):
        job.heartbeat = lambda: _heartbeat(task, job)
        summary = run(job)
        task.finish(asdict(summary))
        return summary


def run(job: Job) -> Summary:
    """Run until the job is stopped. If the node is lost, wait for it and take the locks again."""
    started_at = time.monotonic()
    pause = Pause()
    had_locks = False
    copies = pickled(job.sink)
    with _spark(job, copies) as spark:
        while True:
            attempt_at = time.monotonic()
            try:
                job.hold.executors = spark.now() is not None
                if not _take_locks(job, after_outage=had_locks):
                    break
                had_locks = True
                _run_once(job, spark, copies)
                break
            except Exception as failure:
                error = known_error(uninterrupted(failure))
                if not had_locks or not (_passes(error) or _is_given_up(error, job, spark)):
                    _end(job, error)
                    raise
                if time.monotonic() - attempt_at > _STABLE_SECONDS:
                    pause = Pause()
                job.summary.outages += 1
                job.session.close()
                job.progress.wait(f"{job.tube}: {error}")
                job.hold.waiting = str(error)
                # A paused job also sends its heartbeat to the node, which is still lost.
                with suppress(NodeError, QueryError):
                    job.heartbeat()
                if job.stop.wait(pause.next()):
                    break
    job.summary.seconds = round(time.monotonic() - started_at, 3)
    return job.summary


def _end(job: Job, error: TrueupError | None) -> None:
    """Release the locks after an error, unless executors may still write: the next worker waits for them."""
    if job.hold.executors and isinstance(error, EngineError):
        job.session.close()
        return
    # No write is running any more, and the session may be used further.
    with suppress(NodeError, QueryError):
        job.hold.release()
        # The pods could not be deleted: the raw error names no cure.
        tubes.published(job.session, job.tube)


def _passes(error: TrueupError | None) -> bool:
    """Whether an error may pass by waiting."""
    return isinstance(error, NodeError) or (isinstance(error, QueryError) and error.sqlstate[:2] in _TEMPORARY)


def _is_given_up(error: TrueupError | None, job: Job, spark: LastingSpark) -> bool:
    """Whether Spark failed and threads can continue; the last writes of its executors are waited for."""
    if not isinstance(error, EngineError) or spark.is_required or not job.hold.executors:
        return False
    spark.give_up(error)
    job.hold.lose_executors()
    return True


def _take_locks(job: Job, *, after_outage: bool) -> bool:
    """Take the locks of all partitions; return False if the job was stopped while it waited."""
    wait = max(job.options.wait, _RELOCK_SECONDS) if after_outage else job.options.wait
    try:
        job.hold.take(wait=wait, say=job.progress.say, is_stopped=job.stop.is_set)
    except CheckFailed:
        job.hold.release()
        if job.stop.is_set():
            return False
        raise
    return True


def _run_once(job: Job, spark: LastingSpark, copies: bytes) -> None:
    """Run with the locks until the end or until the session is lost."""
    pipeline = _pipeline(job, spark, copies)
    job.hold.engine = pipeline.engine
    loop = Run(job, pipeline)
    try:
        with suppress(Stopped):
            loop.run()
        job.summary.dead_letters = loop.letters.count
    except BaseException as error:
        if is_interrupted(error):
            # The second signal: the batch is not waited for.
            pipeline.interrupt()
        raise
    finally:
        loop.control.close()
        # Writes must end before another worker, or this job again, takes the locks.
        pipeline.close()
    job.hold.release()


def _pipeline(job: Job, spark: LastingSpark, copies: bytes) -> Pipeline:
    node = job.session.reading_node()

    def on_spark(engine: SparkEngine) -> Pipeline:
        if not job.hold.executors:
            job.hold.begin_executors()
            job.say("Spark is ready: its tasks read and write the rows from now on")
        return SparkPipeline(engine, job, node, copies)

    if job.hold.executors and (engine := spark.now()) is not None:
        return on_spark(engine)
    threads = min(cores_here(), _MAX_THREADS)
    local = LocalPipeline(node, job.sink, copies, threads=threads, max_bytes=job.options.max_bytes)
    return HandOverPipeline(local, spark, on_spark)


@contextmanager
def _spark(job: Job, copies: bytes) -> Iterator[LastingSpark]:
    """Start Spark as the settings say, if its tasks can write to the sink."""
    settings = job.options.spark
    is_elsewhere = bool(settings.master or settings.remote)
    if settings.engine != "local" and not copies and not isinstance(job.sink, CommittingSink):
        if settings.engine == "spark":
            raise CheckFailed(["this sink can be written by a single process only"], cure="use --engine local")
        if is_elsewhere:
            job.say("this sink can be written by a single process only: threads of this process are used, not Spark")
        settings = replace(settings, engine="local")
    elif settings.engine == "auto" and not is_elsewhere and not isinstance(job.sink, (CommittingSink, SplittingSink)):
        # A function or class of the user: it may use what this process has, and workers may not find its module.
        settings = replace(settings, engine="local")
    spark = LastingSpark(settings, deliver_task, warn=job.say)
    try:
        spark.wait()
        yield spark
    finally:
        spark.close()


def _heartbeat(task: OpenTask, job: Job) -> None:
    """Record the progress; wait while the task is paused, and stop the job if that is requested."""
    summary, hold = job.summary, job.hold
    progress: dict[str, object] = {"stage": "tube run", "keys": summary.keys, "pods": summary.pods}
    progress.update({"keys_per_second": round(hold.rate()), "parked": summary.parked, "engine": hold.engine})
    waiting = hold.waiting
    if waiting:
        progress["waiting"] = waiting
    if summary.problems:
        progress["problems"] = list(summary.problems)
    task.heartbeat(progress)
    while (request := task.request()) == "pause" and not job.stop.wait(_PAUSED_SECONDS):
        hold.waiting = _PAUSED
        hold.beat()
        task.heartbeat({**progress, "waiting": _PAUSED})
    hold.waiting = waiting
    if request == "stop":
        job.stop.set()
