"""The Python of Spark's workers: with its own PySpark, whose modules are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from trueup.engine.python import compiled_python

ZIPS = ":".join(map(str, sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("py*.zip"), reverse=True)))
SHOW = "import py4j, pyspark, sys; print(pyspark.__file__, py4j.__file__, *sys.path, sep='\\n')"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def test_the_zip_files_of_spark_are_not_used(tmp_path: Path) -> None:
    path = f"{ZIPS}:/spark.jar:{ZIPS}:/spark.jar:{tmp_path}"
    command = [compiled_python(), "-c", SHOW]
    shown = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    own, py4j, *paths = shown.stdout.splitlines()
    assert own == pyspark.__file__
    assert ".zip" not in py4j
    assert str(tmp_path) in paths


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYSPARK_PYTHON", "/usr/bin/python3"),
        ("SPARK_HOME", "/opt/spark"),
        ("PYTHONPATH", f"/own:{ZIPS}"),
        ("XDG_CACHE_HOME", "/proc/1"),
    ],
)
def test_it_is_not_used_if_another_one_was_chosen(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not compiled_python()


def test_it_is_not_used_if_a_new_process_finds_no_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o700)
    assert not compiled_python()


def test_what_is_in_its_place_is_replaced(tmp_path: Path) -> None:
    script = Path(compiled_python())
    text = script.read_bytes()
    same = tmp_path / "same"
    same.write_bytes(text)
    same.chmod(0o700)

    def replaced() -> bool:
        assert compiled_python() == str(script)
        return not script.is_symlink() and script.stat().st_nlink == 1 and script.read_bytes() == text

    script.write_bytes(b"\xff\x00")
    assert replaced()
    script.unlink()
    (script / "sub").mkdir(parents=True)
    assert replaced()
    # Another file with this text may be changed later.
    script.unlink()
    script.symlink_to(same)
    assert replaced()
    script.unlink()
    script.hardlink_to(same)
    assert replaced()
    assert list(script.parent.iterdir()) == [script]


def test_a_script_that_cannot_be_written_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(compiled_python())
    script.write_text("#!/bin/sh\nexit 1\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not compiled_python()
    assert list(script.parent.iterdir()) == [script]
