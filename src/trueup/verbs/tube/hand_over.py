"""The pipeline of "auto": threads deliver the first batches, and Spark those from the moment it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.shape import Shape
from trueup.engine.lasting import LastingSpark
from trueup.engine.spark import SparkEngine
from trueup.verbs.tube.pipeline import EnrichedBatch, Outcome, Pipeline


class HandOverPipeline:
    """Passes the steps on to threads, and after `take_over` to Spark, which `make` starts to use."""

    def __init__(self, threads: Pipeline, spark: LastingSpark, make: Callable[[SparkEngine], Pipeline]) -> None:
        self._current = threads
        self._spark = spark
        self._make = make
        self._is_handed_over = False

    @property
    def least_keys_at_once(self) -> int:
        """Return the least limit of the current pipeline."""
        return self._current.least_keys_at_once

    @property
    def keys_at_once(self) -> int:
        """Return the limit of the current pipeline."""
        return self._current.keys_at_once

    @property
    def seconds_at_once(self) -> float:
        """Return the aim of the current pipeline."""
        return self._current.seconds_at_once

    @property
    def reads_ahead(self) -> bool:
        """Return whether the current pipeline reads ahead."""
        return self._current.reads_ahead

    @property
    def engine(self) -> dict[str, Any]:
        """Return what the current pipeline runs on; while that are threads, also why Spark is not used."""
        problem = {"problem": self._spark.problem} if self._spark.problem else {}
        return {**self._current.engine, **problem}

    def take_over(self) -> bool:
        """Change to Spark if it is ready; the threads have ended then."""
        if self._is_handed_over or (engine := self._spark.now()) is None:
            return False
        self._is_handed_over = True
        self._current.close()
        self._current = self._make(engine)
        return True

    def check(self) -> None:
        """Check the engine of the current pipeline."""
        self._current.check()

    def setup(self, shapes: Sequence[Shape]) -> None:
        """Announce the tables to the sink."""
        self._current.setup(shapes)

    def enrich(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[EnrichedBatch]:
        """Start to read the rows of a batch."""
        return self._current.enrich(batch, shapes)

    def write(self, enriched: EnrichedBatch) -> Future[Outcome]:
        """Start to write a batch."""
        return self._current.write(enriched)

    def interrupt(self) -> None:
        """End the running steps of the current pipeline."""
        self._current.interrupt()

    def close(self) -> None:
        """Close the current pipeline."""
        self._current.close()
