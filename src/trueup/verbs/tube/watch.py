"""`trueup tube stats`, once or repeatedly: in place on a terminal, one output below the other elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from trueup.capture.triggers import tubes
from trueup.capture.triggers.model import as_json
from trueup.capture.triggers.problems import Problem, find_problems
from trueup.capture.triggers.session import Session
from trueup.config.visible import visible
from trueup.errors import NodeError
from trueup.verbs.tube.text import stats_text

# Seconds between two checks of the attached tables, which take longer than the statistics.
_CHECK_SECONDS = 10.0


def look(session: Session, problems: Collection[Problem] | None = None) -> tuple[dict[str, Any], str]:
    """Return the current statistics as JSON values and as text; without `problems`, the tables are checked."""
    stats, backfills = tubes.stats(session), tubes.backfills(session)
    found = list(find_problems(session).values() if problems is None else problems)
    values = {
        "stats": [as_json(row) for row in stats],
        "backfills": [as_json(row) for row in backfills],
        "problems": [as_json(row) for row in found],
    }
    return values, stats_text(stats, backfills, found)


def watch(session: Session, *, interval: float, times: int, as_lines: bool, write: Callable[[str], object]) -> None:
    """Print the statistics every `interval` seconds, `times` times (0: until Ctrl-C); `as_lines`: as lines of JSON."""
    try:
        if as_lines:
            for values, _ in _looks(session, interval, times):
                write(json.dumps(values))
        elif sys.stdout.isatty():
            _in_place(session, interval, times)
        else:
            for _, text in _looks(session, interval, times):
                write(f"{_clock()}\n{text}\n")
    except KeyboardInterrupt:
        return


def _in_place(session: Session, interval: float, times: int) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        for _, text in _looks(session, interval, times):
            live.update(Text(f"{_clock()}  every {interval:g} s, Ctrl-C to stop\n{visible(text)}"), refresh=True)


def _looks(session: Session, interval: float, times: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the statistics repeatedly; if the node is lost, yield the error and connect again."""
    number = 0
    connected = False
    problems: Collection[Problem] = ()
    checked_at = 0.0
    while True:
        began = time.monotonic()
        try:
            if not connected or began - checked_at > _CHECK_SECONDS:
                problems, checked_at = find_problems(session).values(), began
            yield look(session, problems)
            connected = True
        except NodeError as error:
            if not connected:
                raise
            session.close()
            yield {"error": str(error)}, f"{error}; connecting again"
        number += 1
        if number == times:
            return
        time.sleep(max(0.0, interval - (time.monotonic() - began)))


def _clock() -> str:
    return time.strftime("%H:%M:%S")
