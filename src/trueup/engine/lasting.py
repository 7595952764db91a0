"""Spark for a job that runs until it is stopped: threads do its work until Spark is ready, and when Spark fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from trueup.config.settings import SparkSettings
from trueup.engine.background import BackgroundStart
from trueup.engine.choose import session_of_program, start_spark
from trueup.engine.launch import Launch
from trueup.engine.memory import check_memory_for_spark
from trueup.engine.session import LEAST_SECONDS, lasting_conf
from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Work
from trueup.errors import EngineError


class LastingSpark:
    """Starts Spark in the background of a job: with "auto" when the job has lasted `local_seconds`.

    A session of the program, a master and `engine = "spark"` are used from the beginning. `work` is what Python
    workers import before Spark is ready. With "auto", a Spark that fails is a warning; with "spark", it is an error.
    """

    def __init__(
        self,
        settings: SparkSettings,
        work: Work[Any],
        *,
        warn: Callable[[str], object],
        max_connections: int = 0,
    ) -> None:
        self.is_required = settings.engine == "spark"
        # Why threads do the work although Spark was wanted.
        self.problem = ""
        self._settings = settings
        self._share = Share(1.0, max_connections, fixed=settings.slots)
        self._work = work
        self._warn = warn
        self._session = session_of_program(settings)
        self._start = BackgroundStart(self._start_spark)
        self._engine: SparkEngine | None = None
        self._is_over = settings.engine == "local"
        is_given = self.is_required or settings.master or settings.remote or self._session is not None
        self._begins_at = time.monotonic() + (0 if is_given else settings.local_seconds)

    @property
    def may_take_over(self) -> bool:
        """Whether Spark is used, or may be used later."""
        return not self._is_over

    def wait(self) -> None:
        """Wait for a Spark that is required; raise EngineError if it does not start."""
        if self.is_required:
            self._begin()
            self._engine = self._start.result()

    def now(self) -> SparkEngine | None:
        """Return Spark if it is ready; else begin to start it if it is time, and return None."""
        if self._engine is None and not self._is_over:
            if time.monotonic() >= self._begins_at:
                self._begin()
            if self._start.is_done:
                try:
                    engine = self._start.result()
                    # It may have been ready for hours before there is work.
                    engine.check()
                    self._engine = engine
                except EngineError as error:
                    self.give_up(error)
        return self._engine

    def give_up(self, error: EngineError) -> None:
        """Do not use Spark any more; raise the error if Spark is required."""
        self._is_over, self._engine = True, None
        if self.is_required:
            raise error
        self.problem = f"{error.message} ({error.cure})" if error.cure else error.message
        self._warn(f"threads of this process do the work, because Spark failed: {self.problem}")

    def close(self) -> None:
        """Stop Spark, also one that is starting."""
        self._is_over = True
        self._start.close()

    def _begin(self) -> None:
        self._start.begin(self._warm_up)

    def _warm_up(self, engine: SparkEngine) -> None:
        # While threads do the work, it may take long. Nothing else would notice that a Spark that is required hangs.
        with engine.watched(least=LEAST_SECONDS) if self.is_required else nullcontext():
            engine.warm_up(self._work)

    def _start_spark(self, launch: Launch) -> SparkEngine:
        settings = self._settings
        is_here = not (settings.master or settings.remote)
        if is_here and not (self.is_required or self._session is not None):
            check_memory_for_spark()
        if is_here:
            settings = replace(settings, conf={**lasting_conf(), **settings.conf})
        return start_spark(settings, self._share, self._session, launch)
