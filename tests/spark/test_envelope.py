"""Executors without trueup, with another version, or without a required package: an error with a cure."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Room, Tasks
from trueup.errors import EngineError

if TYPE_CHECKING:
    # Workers load this module, and do not have the package.
    from support.fixtures import Spark

# Runs in the Python workers before anything else.
HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""
OTHER = "import trueup; trueup.__version__ = '9.9'"


@pytest.fixture
def workers_with(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the Python workers of this session run some code first, to simulate another installation."""

    def use(code: str) -> None:
        # A unique name: Spark reuses the workers of a known Python.
        folder = tmp_path / uuid.uuid4().hex
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
        python.chmod(0o700)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))

    return use


def _same(task: int, room: Room) -> Iterator[int]:
    yield task


def _error(spark: Spark) -> EngineError:
    with pytest.raises(EngineError) as caught:
        list(SparkEngine(spark, Share(), owned=False).run(_same, Tasks([1])))
    return caught.value


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (HIDE.format(name="trueup"), "trueup is not installed on the executors"),
        (
            HIDE.format(name="psycopg"),
            "the executors do not have the package psycopg, which trueup requires (No module named 'psycopg')",
        ),
        (OTHER, "the executors have trueup 9.9, the driver has trueup {version}"),
    ],
)
def test_different_installations_are_refused(
    spark: Spark, workers_with: Callable[[str], None], code: str, message: str
) -> None:
    from trueup import __version__

    workers_with(code)
    error = _error(spark)
    assert error.message == message.format(version=__version__)
    assert "docs/clusters.md" in error.cure


def test_a_different_python_is_reported(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "2.7")
    error = _error(spark)
    assert error.message.startswith("the executors run another version of Python than the driver")
    assert "PYSPARK_PYTHON" in error.cure


def test_any_other_failure_is_reported(spark: Spark, workers_with: Callable[[str], None]) -> None:
    workers_with("import trueup.engine.envelope as it; it.freeze_imports = lambda: 1 / 0")
    assert _error(spark).message == "the Spark job failed: ZeroDivisionError: division by zero"


def _pyspark_file(task: int, room: Room) -> Iterator[str]:
    import pyspark

    yield str(pyspark.__file__)


def test_workers_use_the_compiled_pyspark(spark: Spark) -> None:
    """The zip file that Spark puts before it has no compiled modules: each process would compile them."""
    import pyspark

    found = list(SparkEngine(spark, Share(), owned=False).run(_pyspark_file, Tasks([1])))
    assert found == [pyspark.__file__]
