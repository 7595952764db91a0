"""Runs rounds, opens the link again when tables were changed, and reports what the sync sets aside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import psycopg

from trueup.engine.progress import Progress
from trueup.errors import QueryError
from trueup.verbs.sync.link import Link, Opened
from trueup.verbs.sync.model import Outdated, Problem, Refused, Round
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync.totals import Totals, Until

REPORT_SECONDS = 5.0
# A sync that opens its link for each new table would do nothing else where applications create many of them: the time
# between two openings is at least this many seconds, and this many times the time that one takes.
LEAST_SECONDS = 1.0
TIMES = 10.0
RETRY_DDL_SECONDS = 30.0
# How often the link is opened again before a run ends.
LAST_OPENINGS = 3


# Applies changes of the tables on the target; returns whether it applied some, and whether some failed.
FollowDdl = Callable[[], tuple[bool, bool]]


class Following:
    """What a running sync knows from one opened link to the next one."""

    def __init__(
        self,
        progress: Progress,
        follow_ddl: FollowDdl | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # The link is not up to date: open it again.
        self.has_to_open = False
        self._progress = progress
        self._follow_ddl = follow_ddl
        self._retry_at: float | None = None
        self._reported: tuple[Problem, ...] = ()
        # Tables whose rows could not be written, and why. They are tried again when a table was changed.
        self._refused: dict[str, str] = dict(refused)
        self._opened_at = 0.0
        self._last_openings = 0
        self._took = 0.0

    def link(self, opened: Opened) -> Link:
        """Check all tables, and report what is set aside since the last time."""
        self.has_to_open = False
        link = self._open(opened)
        if self._follow_ddl is not None:
            while (done := self._follow_ddl())[0]:
                link = self._open(opened)
            self._retry_at = time.monotonic() + RETRY_DDL_SECONDS if done[1] else None
        self._opened_at = time.monotonic()
        for problem in link.aside:
            if problem not in self._reported:
                self._progress.say(f"SET ASIDE: {problem}; to fix it: {problem.cure}")
        back = {problem.where for problem in self._reported} - {problem.where for problem in link.aside}
        for where in sorted(back):
            self._progress.say(f"not set aside any more: {where}")
        self._reported = link.aside
        return link

    def _open(self, opened: Opened) -> Link:
        # Without the time of DDL, which may wait long for locks.
        began = time.monotonic()
        link = opened.link(sets_aside=True, refused=self._refused)
        self._took = time.monotonic() - began
        return link

    def rounds(self, runner: Runner, until: Until, totals: Totals, began: float) -> Iterator[Totals]:
        """Run rounds until the last one, or until the link has to be opened again; yield the totals every few seconds.

        A change of a table that an error shows raises Outdated.
        """
        reported, sequences_at = time.monotonic(), 0.0
        while True:
            with self.errors(runner.link):
                last = runner.round()
                totals = totals.plus(last, time.monotonic() - began)
                is_over = until.is_reached(last) or last.stop_asked
                self._see(last, is_over=is_over)
                if is_over or time.monotonic() - sequences_at >= until.sequences:
                    runner.check_chain()
                    runner.copy_sequences()
                    runner.copy_large_objects()
                    sequences_at = time.monotonic()
            if is_over or time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                yield totals
            if is_over or self.has_to_open:
                return
            if not last.keys and not last.reloaded:
                time.sleep(until.interval)

    def _see(self, last: Round, *, is_over: bool) -> None:
        """Note whether a round saw other relations than those of the link."""
        is_due = time.monotonic() - self._opened_at >= max(LEAST_SECONDS, TIMES * self._took)
        if is_over and last.is_outdated and not is_due:
            # The result has to name what was created meanwhile.
            self._last_openings += 1
            is_due = self._last_openings <= LAST_OPENINGS
        is_retried = self._retry_at is not None and time.monotonic() >= self._retry_at
        self.has_to_open = ((last.is_outdated and is_due) or is_retried) and not last.stop_asked

    def set_aside(self, name: str, why: str) -> None:
        """Set a table aside until a table is changed, and raise Refused."""
        self._refused[name] = why
        raise Refused([f"{name}: {why}"])

    @contextmanager
    def errors(self, link: Link) -> Iterator[None]:
        """Raise Outdated if an error of the block is the result of a change of a table, or sets a table aside."""
        try:
            yield
        except (QueryError, psycopg.Error) as error:
            known = link.error_from_server(error)
            if not isinstance(known, QueryError):
                raise
            if link.is_outdated():
                self._refused.clear()
                raise Outdated([f"a table was changed during a round ({known})"]) from error
            name = link.refused_table(known)
            if not name:
                raise
            self._refused[name] = f"the target refused its rows: {known.message}"
            raise Refused([f"the target refused rows of {name}"]) from error
        except Refused:
            raise
        except Outdated:
            self._refused.clear()
            raise
