"""Files with data are complete or absent, and only readable by their owner; other files are not replaced."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trueup.config.files import PartFile, open_private
from trueup.config.process import own_command
from trueup.config.template import write_template
from trueup.errors import StoreError, TrueupError
from trueup.report.json_file import private_file, report_path, write_private, write_report
from trueup.verbs.repair.undo_file import UndoFile, read_head


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


def test_an_undo_file_is_not_continued_through_a_link(tmp_path: Path) -> None:
    undo, victim = UndoFile(tmp_path / "undo.gz", ("n1",), {}), tmp_path / "victim"
    undo.keep()
    size = undo.path.stat().st_size
    undo.after(0, "n1", [(b"1", b"2")])
    assert undo.path.stat().st_size > size
    victim.write_text("x")
    undo.path.unlink()
    undo.path.symlink_to(victim)
    with pytest.raises(StoreError, match="cannot write the undo file"):
        undo.after(0, "n1", [(b"1", b"2")])
    assert victim.read_text() == "x"


def test_two_processes_that_choose_one_name_keep_both_undo_files(tmp_path: Path) -> None:
    path, another = tmp_path / "undo.gz", tmp_path / "undo-2.gz"
    first, second = UndoFile(path, ("n1",), {}), UndoFile(path, ("n2",), {}, lambda: another)
    third = UndoFile(path, ("n3",), {})
    for undo in (first, second):
        undo.keep()
        undo.after(0, read_head(undo.path)["nodes"][0], [(b"1", b"2")])
    assert [read_head(each)["nodes"] for each in (path, another)] == [["n1"], ["n2"]]
    assert (first.path, second.path) == (path, another)
    # A name that the user gave is not changed.
    with pytest.raises(StoreError, match="never overwritten"):
        third.keep()
    third.discard()
    assert sorted(tmp_path.iterdir()) == [another, path]


def test_a_report_does_not_replace_that_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"

    def write_late() -> None:
        with private_file(path, new=True) as file:
            file.write("late")
            write_private(path, "first")

    for has_links in (True, False):
        if not has_links:
            monkeypatch.setattr(os, "link", raise_not_supported)
        path.unlink(missing_ok=True)
        with pytest.raises(FileExistsError):
            write_late()
        assert path.read_text() == "first"
        assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    write_report(path, {}, [])
    assert list(tmp_path.iterdir()) == [path]


def raise_not_supported(*_: object) -> None:
    raise OSError(errno.EPERM, "no links")


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


def test_a_temporary_file_is_new_and_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".report.json.part", "log", "trueup.toml"):
        (tmp_path / name).symlink_to(victim)
    write_private(tmp_path / "report.json", "data")
    write_template(tmp_path / "trueup.toml", force=True)
    with pytest.raises(OSError, match="symbolic links"):
        open_private(tmp_path / "log", os.O_WRONLY | os.O_APPEND)
    os.link(victim, tmp_path / "second")
    with pytest.raises(OSError, match="not a regular file of this user"):
        open_private(tmp_path / "second", os.O_WRONLY | os.O_TRUNC)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "trueup.toml").is_symlink()


def test_two_writers_of_one_path_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    first, second = PartFile(path), PartFile(path)
    first.file.write(b"first")
    second.file.write(b"second")
    second.keep()
    assert path.read_bytes() == b"second"
    first.keep()
    assert path.read_bytes() == b"first"
    first.discard()
    second.discard()
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    script = (
        "import os, pathlib, signal, sys; from trueup.config.files import PartFile;"
        " PartFile(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write_private(path, "data")
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_content_and_name_are_on_the_disk_before_a_writer_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_private(tmp_path / "report.json", "data")
    assert synced == ["file", "folder"]


def test_the_own_command_runs_nothing_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "trueup.py").write_text("print('hijacked')")
    ran = subprocess.run([*own_command(), "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "hijacked" not in ran.stdout
    # What the other form would do, where the environment does not already ask Python for a safe path.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ran = subprocess.run(
        [sys.executable, "-m", "trueup"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "hijacked" in ran.stdout
