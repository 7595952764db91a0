"""The maker of class-data archives: one at a time, whatever is killed. Functions that write files replace Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from trueup.engine.archive import Archive
from trueup.engine.archive_maker import make

# Writes one half, then waits.
MAKE = """
import json, sys
from trueup.engine.archive import Archive
from trueup.engine.archive_maker import make
def train(archive, part):
    part.write_bytes(b"half")
    print("writing", flush=True)
    sys.stdin.readline()
    return 0
print(make(Archive(**json.loads(sys.argv[1])), train))
"""


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """An archive that does not exist."""
    (tmp_path / "cache").mkdir(mode=0o700)
    return Archive(str(tmp_path / "cache" / "spark-1.jsa"), "", "/java", {})


def _whole(_: Archive, part: Path) -> int:
    part.write_bytes(b"whole")
    return 0


def _names(archive: Archive) -> set[str]:
    return {path.name for path in Path(archive.path).parent.iterdir()}


def test_two_at_once_and_a_killed_one(archive: Archive) -> None:
    command = [sys.executable, "-c", MAKE, json.dumps(asdict(archive))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "writing\n"
        assert make(archive, _whole) is False
        first.kill()
    left = f"spark-1.jsa.{first.pid}.part"
    assert (_names(archive), archive.is_ready()) == ({"spark-1.lock", left}, False)
    assert make(archive, _whole) is True
    assert (_names(archive), archive.is_ready()) == ({"spark-1.lock", "spark-1.json", "spark-1.jsa"}, True)
    assert Path(archive.path).read_bytes() == b"whole"
    assert make(archive, _whole) is False


def test_java_that_fails_or_is_killed(archive: Archive) -> None:
    def ends(code: int) -> bool:
        def train(_: Archive, part: Path) -> int:
            part.write_bytes(b"half")
            return code

        return make(archive, train)

    # Killed: the next run tries again at once.
    assert ends(-9) is False
    assert _names(archive) == {"spark-1.lock"}
    assert ends(1) is False
    assert archive.failure.read_text() == "Java ended with exit code 1, without an archive"
    assert _names(archive) == {"spark-1.lock", "spark-1.failed"}

    def full(_: Archive, part: Path) -> int:
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        make(archive, full)
    assert "No space" in archive.failure.read_text()
    assert _names(archive) == {"spark-1.lock", "spark-1.failed"}
    # After a failure, no run starts another process for a while, and what a killed one has left is removed.
    Path(f"{archive.path}.1.part").write_bytes(b"half")
    archive.start_making()
    assert _names(archive) == {"spark-1.lock", "spark-1.failed"}


def test_a_folder_in_the_place_of_a_file(archive: Archive) -> None:
    for name in ("spark-1.jsa", "spark-1.json"):
        (Path(archive.path).with_name(name) / "sub").mkdir(parents=True)
    assert make(archive, _whole) is True
    assert archive.is_ready()


def test_the_most_recently_used_archives_are_kept(archive: Archive) -> None:
    folder = Path(archive.path).parent
    archive = replace(archive, base=str(folder / "java-1.jsa"))
    others = [
        Archive(str(folder / f"spark-{number}.jsa"), str(folder / f"java-{number}.jsa"), "/java", {})
        for number in range(2, 7)
    ]

    def made(each: Archive) -> None:
        # As Java would write it.
        part = Path(f"{each.base}.part")
        part.write_bytes(b"base")
        each.keep(part, each.base)
        assert make(each, _whole)

    for each in (archive, *others[:3]):
        made(each)
    # Written by the Java of a killed maker, and by that of a maker that runs.
    left, written = Path(f"{others[0].base}.1.part"), Path(f"{archive.path}.2.part")
    for path in (left, written):
        path.write_bytes(b"part")
    os.utime(left, (0, 0))
    archive.used()
    assert (left.exists(), written.exists()) == (False, True)
    for each in others[3:]:
        made(each)
    kept = {path.stem for path in folder.glob("*.jsa")}
    assert kept == {f"{kind}-{number}" for kind in ("spark", "java") for number in (1, 4, 5, 6)}
