"""The error for a Spark job that failed names its cause, the last error of the traceback."""

from __future__ import annotations

import pytest

from trueup.engine.failures import failed_job

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


JAVA = """An error occurred while calling o71.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: {}
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:341)
"""


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (
            "org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's"
            " stdout and terminated with code: 137.",
            "the Spark job failed: its Python workers were killed or crashed",
        ),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "the Spark job failed: its Python workers were killed or crashed",
        ),
        (
            'java.io.IOException: Cannot run program "/none/python": error=2, No such file or directory',
            "Spark cannot start the Python of its workers: /none/python",
        ),
        (
            'java.lang.NullPointerException: Cannot invoke "DAGScheduler.cleanupQueryJobs(long)"'
            ' because the return value of "org.apache.spark.SparkContext.dagScheduler()" is null',
            "Spark has stopped while a query was running, often because of too little memory",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "the Spark job failed: OutOfMemoryError: Java heap space"),
    ],
)
def test_a_cause_in_java(cause: str, message: str) -> None:
    assert failed_job(RuntimeError(JAVA.format(cause))).message == message
