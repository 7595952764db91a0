"""Texts of others on a terminal: control characters are written as escapes, wherever a text comes from."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup
from trueup.config.logs import JsonFormatter, TextFormatter
from trueup.config.visible import as_lines, one_line, visible, visible_json
from trueup.engine.progress import Bar
from trueup.report.text import aligned

SOURCES = Path(trueup.__file__).parent
# Clears the screen, hides what comes, goes to the start of the line, reverses the direction; of ASCII and of Latin 1.
HOSTILE = "t\x1b[2J\x9b8m\rVERIFIED\x07\x08\x7f\u202e\u2028\nVERIFIED: intact"


@given(st.text())
def test_only_line_feeds_stay(text: str) -> None:
    shown = visible(HOSTILE + text)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert shown.count("\n") == (HOSTILE + text).count("\n")
    assert one_line(HOSTILE + text).isprintable()
    assert len(as_lines([HOSTILE, text]).split("\n")) == 2
    for written in (json.dumps([HOSTILE, text]), json.dumps([HOSTILE, text], ensure_ascii=False)):
        shown = visible_json(written)
        assert json.loads(shown) == [HOSTILE, text]
        assert all(char.isprintable() or char in "\n\r\t" for char in shown)
    # Columns stay aligned: a cell is as wide as it is shown.
    first, second = aligned([[HOSTILE, "a"], ["x", "b"]])
    assert (first.index("  a"), first.isprintable()) == (second.index("  b"), True)


def test_log_records() -> None:
    record = logging.LogRecord("trueup", logging.WARNING, "", 0, "table %s", (HOSTILE,), None)
    first, second = TextFormatter().format(record).split("\n")
    assert (first.isprintable(), second.startswith("  VERIFIED")) == (True, True)
    assert json.loads(JsonFormatter().format(record))["message"] == f"table {HOSTILE}"
    record.exc_text = f"Traceback\n{HOSTILE}"
    traced = TextFormatter().format(record)
    assert "\x1b" not in traced
    assert all(line.startswith("  ") for line in traced.split("\n")[1:])


def test_bars_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A sync has a bar per table: its name is no markup."""
    bar = Bar()
    bar.stage("a[/bold]\x1b[2J\nVERIFIED", 2)
    bar.advance(rows=1)
    bar.close()
    shown = capsys.readouterr().err
    assert ("a[/bold]" in shown, "\x1b[2J" in shown, "\nVERIFIED" in shown) == (True, False, False)


def test_there_are_two_ways_out() -> None:
    """A command prints by `cli.output`, and a log record by `config.logs`: no other module writes to the terminal."""
    ways = re.compile(r"click\.(echo|secho|style|confirm|prompt)\b|\bprint\(|sys\.(stdout|stderr)\.write|markup=True")
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if ways.search(path.read_text(encoding="utf-8"))
    }
    # The third one is the text of a program that another Python runs.
    assert found == {"cli/output.py", "config/logs.py", "engine/python.py"}
    # A text that rich draws: the bars, and the statistics of tubes.
    drawn = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if "from rich" in path.read_text()}
    assert drawn == {"engine/progress.py", "verbs/tube/watch.py"}
