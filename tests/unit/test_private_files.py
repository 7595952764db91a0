"""Files with data are complete or absent, and only readable by their owner; other files are not replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from trueup.config.template import write_template
from trueup.errors import TrueupError
from trueup.report.json_file import private_file, report_path, write_private


def test_a_report_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    mask = os.umask(0)
    try:
        write_private(path, "data")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_failed_writer_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with private_file(tmp_path / "report.json") as file:
            file.write("half of it")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def _write_report(path: Path) -> None:
    write_private(path, "x")


def _write_template(path: Path) -> None:
    write_template(path, force=True)


@pytest.mark.parametrize("write", [_write_report, _write_template])
def test_a_pipe_is_not_replaced(tmp_path: Path, write: Callable[[Path], None]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    with pytest.raises(TrueupError, match="not a regular file"):
        write(pipe)
    assert pipe.is_fifo()
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o666


def test_two_unwritten_reports_have_different_names(tmp_path: Path) -> None:
    assert report_path(tmp_path, "a_b", "c", "1").name == "a_b_c_diffs-1.json"
    assert report_path(tmp_path, "a", "b_c", "1").name == "a_b_c_diffs-1-2.json"
