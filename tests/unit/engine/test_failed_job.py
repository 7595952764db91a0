"""The error for a Spark job that failed names its cause, the last error of the traceback."""

from __future__ import annotations

import pytest

from trueup.engine.envelope import failed_job

EARLIER = "ModuleNotFoundError: No module named 'orjson'\n\nDuring handling of the above exception, another occurred:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ModuleNotFoundError: No module named 'trueup.engine'", "trueup is not installed on the executors"),
        (
            "ModuleNotFoundError: No module named 'psycopg'",
            "the executors do not have the package psycopg, which trueup requires (No module named 'psycopg')",
        ),
        (EARLIER + "ValueError: bad slice", "the Spark job failed: ValueError: bad slice"),
    ],
)
def test_the_last_error_is_the_cause(text: str, message: str) -> None:
    assert failed_job(RuntimeError(f"Traceback (most recent call last):\n{text}\n")).message == message
