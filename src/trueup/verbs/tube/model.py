"""The options of a job, the summary of its work, and the state that its steps share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.session import Session
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Progress
from trueup.sinks.base import Sink


@dataclass(frozen=True)
class RunOptions:
    """All options of `trueup tube run` except the tube and the sink."""

    # Partitions of the tube to process.
    partitions: tuple[int, ...] = ()
    # Stop when the tube is empty and all backfills are finished.
    until_empty: bool = False
    # Seconds to wait for a partition that another worker holds.
    wait: float = 0.0
    # Limits per batch. `max_keys` 0: the default of the engine. `max_bytes` is the size of the rows read at once.
    max_pods: int = 2_000
    max_keys: int = 0
    max_bytes: int = 32 * 1024 * 1024
    # Attempts to deliver a refused key before it is parked, and seconds before the first retry.
    attempts: int = 5
    retry_pause: float = 1.0
    spark: SparkSettings = field(default_factory=SparkSettings)


@dataclass
class Summary:
    """What a job has done."""

    tube: str
    pods: int = 0
    # Includes the keys of documents that a garbage collection touched again.
    keys: int = 0
    written: int = 0
    removed: int = 0
    batches: int = 0
    # The number of batches by engine.
    ran_on: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    parked: int = 0
    troubles: int = 0
    outages: int = 0
    # Dead letters in the partitions of the job at its end, including those of earlier jobs.
    dead_letters: int = 0
    # Tables with a problem at the end of the job, each with reason and cure.
    problems: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class Job:
    """One run on some partitions of a tube: what its steps share."""

    session: Session
    tube: str
    sink: Sink
    options: RunOptions
    hold: Hold
    progress: Progress
    stop: threading.Event
    # Reports progress to the task store; set by `restart.run_as_task`.
    heartbeat: Callable[[], None] = lambda: None
    # Whether the sink was reached since the start: only then an outage is waited for without an end.
    sink_was_reached: bool = False
    sink_down_since: float = 0.0
    summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        self.summary = Summary(self.tube)

    def say(self, text: str) -> None:
        """Write a progress line with the name of the tube."""
        self.progress.say(f"{self.tube}: {text}")


class Stopped(Exception):
    """The job was asked to stop while its batch could not be finished: the pods stay in the tube."""


class SetAside(Exception):
    """A table of a batch is set aside: the pods of the batch stay in the tube, and are claimed again without it."""
