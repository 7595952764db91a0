"""What waits in tubes, looked at again and again: in place on a terminal, one below the other elsewhere."""

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
    """What waits now: for programs, and for people."""
    stats, backfills = tubes.stats(session), tubes.backfills(session)
    values = {"stats": [as_json(each) for each in stats], "backfills": [as_json(each) for each in backfills]}
    return values, stats_text(stats, backfills)


def watch(session: Session, *, every: float, times: int, as_lines: bool, write: Callable[[str], object]) -> None:
    """Look every so many seconds, so many times (0: until Ctrl-C, which is no error here); `as_lines`: as JSON."""
    try:
        if as_lines:
            for values, _ in _looks(session, every, times):
                write(json.dumps(values))
        elif sys.stdout.isatty():
            _in_place(session, every, times)
        else:
            for _, text in _looks(session, every, times):
                write(f"{_clock()}\n{text}\n")
    except KeyboardInterrupt:
        return


def _in_place(session: Session, every: float, times: int) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        for _, text in _looks(session, every, times):
            live.update(Text(f"{_clock()}  every {every:g} s, Ctrl-C ends it\n{text}"), refresh=True)


def _looks(session: Session, every: float, times: int) -> Iterator[tuple[dict[str, Any], str]]:
    """A node that is lost is asked again: whoever watches wants to see when it is back."""
    number = 0
    seen = False
    while True:
        began = time.monotonic()
        try:
            yield look(session)
            seen = True
        except NodeError as error:
            if not seen:
                raise
            session.close()
            yield {"error": str(error)}, f"{error}; asking again"
        number += 1
        if number == times:
            return
        time.sleep(max(0.0, every - (time.monotonic() - began)))


def _clock() -> str:
    return time.strftime("%H:%M:%S")
