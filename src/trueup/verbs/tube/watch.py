"""`trueup tube stats`, once or repeatedly: in place on a terminal, one output below the other elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from trueup.capture.triggers import tubes
from trueup.capture.triggers.model import as_json
from trueup.capture.triggers.session import Session
from trueup.errors import NodeError
from trueup.verbs.tube.text import stats_text


def look(session: Session) -> tuple[dict[str, Any], str]:
    """Return the current statistics as JSON values and as text."""
    stats, backfills = tubes.stats(session), tubes.backfills(session)
    values = {"stats": [as_json(row) for row in stats], "backfills": [as_json(row) for row in backfills]}
    return values, stats_text(stats, backfills)


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
            live.update(Text(f"{_clock()}  every {interval:g} s, Ctrl-C to stop\n{text}"), refresh=True)


def _looks(session: Session, interval: float, times: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the statistics repeatedly; if the node is lost, yield the error and connect again."""
    number = 0
    connected = False
    while True:
        began = time.monotonic()
        try:
            yield look(session)
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
