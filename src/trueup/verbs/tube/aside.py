"""Tables that are set aside: their rows cannot be delivered, so their pods wait while the other tables go on."""

from __future__ import annotations

import time
from collections.abc import Collection

from trueup.capture.triggers import tubes
from trueup.capture.triggers.problems import CHECK_SECONDS, Problem, find_problems
from trueup.capture.triggers.shape import Shapes
from trueup.errors import QueryError
from trueup.verbs.tube.model import Job

COVER_SECONDS = 10.0


class Aside:
    """The problems of the attached tables of a job, as of the last check. Each is reported once."""

    def __init__(self, job: Job, shapes: Shapes) -> None:
        self._job = job
        self._shapes = shapes
        self._problems: dict[int, Problem] = {}
        self._notices: list[str] = []
        self._checked_at = self._covered_at = 0.0

    @property
    def sources(self) -> tuple[int, ...]:
        """Return the sources of the tables that are set aside."""
        return tuple(source for source, problem in self._problems.items() if problem.stops)

    def beat(self) -> None:
        """Do what is due: partitions every few seconds, the whole check each minute."""
        now = time.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            self.check()
        elif now - self._covered_at >= COVER_SECONDS:
            self._cover()

    def check(self) -> bool:
        """Check all tables, and report what has changed since the last check; return whether anything has."""
        job, before = self._job, self._problems
        errors = self._cover()
        self._problems = find_problems(job.session, job.tube, shapes=self._shapes)
        for source, error in errors.items():
            if source in self._problems:
                problem = self._problems[source]
                text = f"{problem.text} ({error})"
                self._problems[source] = Problem(source, problem.tube, problem.table, text, problem.stops)
        self._checked_at = time.monotonic()
        for source, problem in self._problems.items():
            if before.get(source) != problem:
                job.say(f"{problem.table} is set aside: {problem.text}" if problem.stops else str(problem))
        for source in before.keys() - self._problems.keys():
            job.say(f"{before[source].table}: the problem is gone")
        self._notice()
        job.summary.problems = tuple(map(str, self._problems.values()))
        return before != self._problems

    def explains(self, error: QueryError, sources: Collection[int], *, must_name: bool) -> bool:
        """Return whether a table of `sources`, whose rows could not be read, is set aside now.

        With `must_name`, the table that the error names is set aside until the next check, whatever the check finds.
        """
        self.check()
        for shape in self._shapes.get(sources).values():
            if must_name and shape.table and shape.table == error.table and shape.source not in self._problems:
                text = f"its rows cannot be read: {error.message}"
                self._problems[shape.source] = Problem(shape.source, self._job.tube, shape.table, text, stops=True)
                self._job.say(f"{shape.table} is set aside: {text}")
                self._job.summary.problems = tuple(map(str, self._problems.values()))
        return bool(set(sources) & set(self.sources))

    def _cover(self) -> dict[int, str]:
        """Notice new and removed partitions; return the errors by source."""
        self._covered_at = time.monotonic()
        return tubes.cover_each(self._job.session, self._job.tube, patience=1.0)

    def _notice(self) -> None:
        """Report what is no problem of the tube: subscribers of its pods."""
        notices = [text for text in [tubes.published(self._job.session, self._job.tube)] if text]
        for text in notices:
            if text not in self._notices:
                self._job.say(text)
        self._notices = notices
