"""Tables that are set aside: their rows cannot be delivered, so their pods wait while the other tables go on."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from trueup.capture.triggers import tubes
from trueup.capture.triggers.problems import CHECK_SECONDS, Problem, check_tables
from trueup.capture.triggers.shape import Shape, Shapes
from trueup.errors import QueryError
from trueup.verbs.tube.model import Job

COVER_SECONDS = 10.0


class Aside:
    """The problems of the attached tables of a job, as of the last check. Each is reported once."""

    def __init__(self, job: Job, shapes: Shapes) -> None:
        self._job = job
        self._shapes = shapes
        self._problems: dict[int, Problem] = {}
        # Tables that the sink refuses.
        self._refused: dict[int, Problem] = {}
        self._refused_at = 0.0
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
        found = check_tables(job.session, job.tube, shapes=self._shapes)
        # A table that the sink refuses stays aside, whatever else is reported.
        self._problems = {
            source: self._refused[source] if source in self._refused and not problem.stops else problem
            for source, problem in {**self._refused, **found}.items()
        }
        for source, error in errors.items():
            if source in self._problems:
                problem = self._problems[source]
                self._problems[source] = replace(problem, text=f"{problem.text} ({error})")
        self._checked_at = time.monotonic()
        self._report(before)
        self._notice()
        return before != self._problems

    @property
    def needs_setup(self) -> bool:
        """Whether the sink has to be asked again about tables that it refused."""
        return bool(self._refused) and time.monotonic() - self._refused_at >= CHECK_SECONDS

    def without(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the tables for the sink: without those that are set aside for another reason than the sink."""
        return [shape for shape in shapes if shape.source not in self.sources or shape.source in self._refused]

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Set the tables aside that the sink refuses, and no others that it refused before."""
        before, self._refused_at = self._problems, time.monotonic()
        tables = {shape.source: shape.table for shape in self._shapes.get(reasons).values()} if reasons else {}
        kept = {source: problem for source, problem in before.items() if self._refused.get(source) != problem}
        self._refused = {
            source: Problem(source, self._job.tube, tables[source], reason, stops=True)
            for source, reason in reasons.items()
        }
        self._problems = {**kept, **self._refused}
        self._report(before)

    def _report(self, before: Mapping[int, Problem]) -> None:
        job = self._job
        for source, problem in self._problems.items():
            if before.get(source) != problem:
                job.say(f"{problem.table} is set aside: {problem.text}" if problem.stops else str(problem))
        for source in before.keys() - self._problems.keys():
            job.say(f"{before[source].table}: the problem is gone")
        job.summary.problems = tuple(map(str, self._problems.values()))

    def explains(self, error: QueryError, sources: Collection[int], *, must_name: bool) -> bool:
        """Return whether a table of `sources`, whose rows could not be read, is set aside now.

        With `must_name`, the table that the error names is set aside until the next check, whatever the check finds.
        """
        self.check()
        for shape in self._shapes.get(sources).values():
            if must_name and shape.table and shape.table == error.table and shape.source not in self._problems:
                before, text = dict(self._problems), f"its rows cannot be read: {error.message}"
                self._problems[shape.source] = Problem(shape.source, self._job.tube, shape.table, text, stops=True)
                self._report(before)
        return bool(set(sources) & set(self.sources))

    def _cover(self) -> dict[int, str]:
        """Notice new and removed partitions; return the errors by source."""
        self._covered_at = time.monotonic()
        return tubes.cover_each(self._job.session, self._job.tube, patience=1.0)

    def _notice(self) -> None:
        """Report what is no problem of a table: subscribers of the pods."""
        notices = [text for text in [tubes.published(self._job.session, self._job.tube)] if text]
        for text in notices:
            if text not in self._notices:
                self._job.say(text)
        self._notices = notices
