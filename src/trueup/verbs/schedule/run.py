"""The path of the scheduler: schedule every job, wait for a signal, terminate running jobs, wait for their end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from trueup.store import TaskStore, times
from trueup.verbs.schedule.listing import last_runs
from trueup.verbs.schedule.model import Job
from trueup.verbs.schedule.process import Runner
from trueup.verbs.schedule.times import next_time, trigger_of

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1


def run(jobs: Sequence[Job], *, store: TaskStore, env: Mapping[str, str]) -> None:
    """Run the jobs at their times until Ctrl-C or SIGTERM; return when all running jobs have ended.

    `env` is added to the environment of every job.
    """
    runner = Runner(store, env)
    scheduler = _scheduler(jobs, runner, store)
    with _signals() as received:
        scheduler.start()
        try:
            for job in scheduler.get_jobs():
                _log.info("%s: next at %sZ", job.id, times.iso(job.next_run_time)[:19], extra={"job": job.id})
            while not received:
                time.sleep(_POLL_SECONDS)
        finally:
            _stop(runner, received)
            scheduler.shutdown(wait=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list.

    The handlers only append to the list: an exception could leave a lock of the scheduler locked.
    """
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: received.append(number)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _scheduler(jobs: Sequence[Job], runner: Runner, store: TaskStore) -> Any:
    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, JobEvent
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    # Events are reported by the listener below.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    now = datetime.now(timezone.utc)
    last = last_runs(jobs, store)
    scheduler = BackgroundScheduler(
        timezone=timezone.utc,
        executors={"default": ThreadPoolExecutor(len(jobs))},
        # After a suspend, a missed job runs once, however late.
        job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
    )
    for job in jobs:
        before = times.parse(last[job.name].started_at) if job.name in last else None
        trigger, first = trigger_of(job, before, now), next_time(job, before, now)
        scheduler.add_job(runner.run, trigger, args=[job], id=job.name, next_run_time=first)

    def report(event: JobEvent) -> None:
        if event.code == EVENT_JOB_MAX_INSTANCES:
            _log.warning("%s: still running; this time is skipped", event.job_id, extra={"job": event.job_id})
        else:
            _log.error("%s: %s", event.job_id, event.exception, extra={"job": event.job_id})

    scheduler.add_listener(report, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)
    return scheduler


def _stop(runner: Runner, received: Sequence[int]) -> None:
    """Terminate running jobs and wait for their end; kill them at a second signal."""
    running = runner.stop()
    waiting = f"; waiting for {', '.join(running)} (a second signal kills them)" if running else ""
    _log.info("stopping%s", waiting)
    before = len(received)
    while runner.is_busy:
        if len(received) > before:
            _log.warning("killing %s", ", ".join(runner.stop(kill=True)))
            before = len(received)
        time.sleep(_POLL_SECONDS)
