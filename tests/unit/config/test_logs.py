"""Log records: passwords and tokens are masked everywhere in a record, fields of the context are added."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import trueup
from trueup.config.logs import JsonFormatter, LogFilter, TextFormatter, hide, hide_notes, log_fields, set_level, show
from trueup.engine.progress import Silent

SECRETS = (
    "postgresql://app:Kxq77@db1/shop",
    "host=db1 user=app password=Kxq77 dbname=shop",
    "host=db1 password='Kxq77 with blanks' dbname=shop",
    "sc://spark:15002/;token=Kxq77;user_id=app",
    "{'password': 'Kxq77'}",
)


class Lines(logging.Handler):
    """Keeps the formatted lines."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(formatter)
        self.addFilter(LogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(params=[TextFormatter, JsonFormatter, logging.Formatter])
def lines(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Return the lines that a handler with each of the formatters writes."""
    handler = Lines(request.param())
    logger = logging.getLogger("trueup")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def records() -> Iterator[list[str]]:
    """Return the lines in JSON."""
    handler = Lines(JsonFormatter())
    logger = logging.getLogger("trueup")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_message_is_masked(lines: list[str], secret: str) -> None:
    log = logging.getLogger("trueup.db.node")
    log.info("connecting to %s", secret)
    log.info(secret.replace("%", "%%"))
    assert len(lines) == 2
    assert "Kxq77" not in "".join(lines)
    assert "***" in lines[0]


@pytest.mark.parametrize("secret", SECRETS)
def test_exceptions_and_their_tracebacks_are_masked(lines: list[str], secret: str) -> None:
    try:
        try:
            raise OSError(secret)
        except OSError as error:
            raise ValueError(f"failed: {secret}") from error
    except ValueError:
        logging.getLogger("trueup.engine").exception("failed for %r", secret)
    assert "Kxq77" not in "".join(lines)
    assert "ValueError" in lines[0]
    assert "OSError" in lines[0]


@pytest.mark.parametrize("secret", SECRETS)
def test_extra_fields_are_masked(lines: list[str], secret: str) -> None:
    extra = {
        "node": secret,
        "password": "Kxq77",
        "settings": {"token": "Kxq77", "nested": [secret, {"secret": "Kxq77 and more"}]},
        "error": ValueError(secret),
    }
    logging.getLogger("trueup.engine").warning("x", extra=extra, stack_info=True)
    assert "Kxq77" not in "".join(lines)


def test_given_secrets_are_masked_anywhere() -> None:
    handler = Lines(JsonFormatter())
    handler.addFilter(LogFilter("Kxq77"))
    handler.handle(logging.makeLogRecord({"msg": "the server says Kxq77", "levelname": "INFO", "name": "trueup"}))
    assert "Kxq77" not in handler.lines[0]


def test_a_json_line(records: list[str]) -> None:
    with log_fields(task="3f2a", table="public.orders", node=""):
        logging.getLogger("trueup.task").warning("lost %s", "n1", extra={"node": "n1"})
    logging.getLogger("trueup.task").info("done")
    first, second = (json.loads(line) for line in records)
    time = first.pop("time")
    assert (len(time), time[10], time[-1]) == (24, "T", "Z")
    assert first == {
        "level": "WARNING",
        "logger": "trueup.task",
        "message": "lost n1",
        "node": "n1",
        "task": "3f2a",
        "table": "public.orders",
    }
    assert set(second) == {"time", "level", "logger", "message"}


def test_fields_belong_to_a_thread(records: list[str]) -> None:
    with log_fields(task="3f2a"):
        thread = threading.Thread(target=lambda: logging.getLogger("trueup").info("x"))
        thread.start()
        thread.join()
    assert "task" not in json.loads(records[0])


def test_notes_of_the_progress_are_logged(records: list[str]) -> None:
    Silent().say("3 blocks were finished before")
    Silent().wait("n1 is busy")
    Silent().wait("")
    assert [json.loads(line)["message"] for line in records] == ["3 blocks were finished before", "waiting: n1 is busy"]


def test_levels_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("trueup.x")
    show()
    try:
        log.info("note")
        log.debug("detail")
        log.warning("problem")
        hide_notes()
        log.warning("hidden")
        set_level("debug")
        hide_notes()
        log.debug("detail of a quiet run")
        show("error", "json")
        log.warning("hidden too")
        lines = capsys.readouterr().err.splitlines()
    finally:
        hide()
    texts = [line.partition("Z ")[2] for line in lines]
    assert texts == ["trueup: note", "trueup: warning: problem", "trueup: detail of a quiet run"]


def test_warnings_of_the_driver_are_records(capsys: pytest.CaptureFixture[str]) -> None:
    show("", "json")
    try:
        logging.getLogger("psycopg").warning("pipeline aborted: password=%s", "Kxq77")
        (line,) = capsys.readouterr().err.splitlines()
    finally:
        hide()
    assert json.loads(line)["logger"] == "psycopg"
    assert "Kxq77" not in line


def test_the_library_shows_nothing_by_itself() -> None:
    program = "import trueup, logging; logging.getLogger('trueup.db').error('not shown')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_program_can_route_records() -> None:
    program = """
import logging, trueup
logging.basicConfig(level="INFO", format="%(name)s %(message)s")
logging.getLogger().handlers[0].addFilter(trueup.LogFilter())
logging.getLogger("trueup.db").info("to postgresql://u:Kxq77@h/db")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "trueup.db to postgresql://u:***@h/db\n"
    assert trueup.LogFilter is LogFilter
