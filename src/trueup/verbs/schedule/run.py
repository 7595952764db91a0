"""The schedule from start to stop: put every job to its time, wait for a signal, end what runs, wait for it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from trueup.store import TaskStore, times
from trueup.verbs.schedule.listing import last_runs
from trueup.verbs.schedule.model import Job
from trueup.verbs.schedule.process import Runner
from trueup.verbs.schedule.times import next_time, trigger_of

_LOOK_SECONDS = 0.1


def run(jobs: Sequence[Job], *, store: TaskStore, env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Run the jobs at their times until Ctrl-C or SIGTERM; returns when everything under way has ended.

    `env` is added to the environment of every job.
    """
    runner = Runner(store, env, say)
    scheduler = _scheduler(jobs, runner, store, say)
    with _signals() as asked:
        scheduler.start()
        try:
            for job in scheduler.get_jobs():
                say(f"{job.id}: next at {times.iso(job.next_run_time)[:19]}Z")
            while not asked:
                time.sleep(_LOOK_SECONDS)
        finally:
            _stop(runner, asked, say)
            scheduler.shutdown(wait=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that ask to stop, as they come in.

    They are counted and nothing else: an exception out of nowhere, in the middle of the scheduler's locks, could leave
    one of them locked for good.
    """
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: asked.append(number)) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _scheduler(jobs: Sequence[Job], runner: Runner, store: TaskStore, say: Callable[[str], None]) -> Any:
    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, JobEvent
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    # What it has to say comes through the listeners below.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    now = datetime.now(timezone.utc)
    last = last_runs(jobs, store)
    scheduler = BackgroundScheduler(
        timezone=timezone.utc,
        executors={"default": ThreadPoolExecutor(len(jobs))},
        # A machine that slept runs what was missed once, and late is better than not at all.
        job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
    )
    for job in jobs:
        before = times.parse(last[job.name].started_at) if job.name in last else None
        trigger, first = trigger_of(job, before, now), next_time(job, before, now)
        scheduler.add_job(runner.run, trigger, args=[job], id=job.name, next_run_time=first)

    def heard(event: JobEvent) -> None:
        if event.code == EVENT_JOB_MAX_INSTANCES:
            say(f"{event.job_id}: is still running, so this time is left out")
        else:
            say(f"{event.job_id}: {event.exception}")

    scheduler.add_listener(heard, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)
    return scheduler


def _stop(runner: Runner, asked: Sequence[int], say: Callable[[str], None]) -> None:
    """Ask what is under way to end, and wait for it; asked once more, kill it."""
    under_way = runner.stop()
    say(f"stopping; waiting for {', '.join(under_way)} (a second signal kills them)" if under_way else "stopping")
    before = len(asked)
    while runner.is_busy:
        if len(asked) > before:
            say(f"killing {', '.join(runner.stop(kill=True))}")
            before = len(asked)
        time.sleep(_LOOK_SECONDS)
