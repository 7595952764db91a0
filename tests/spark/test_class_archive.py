"""The class-data archive of Spark's Java: used by sessions; ignored, and made again, if it is damaged.

How it is made: tests/unit/engine/test_archive_maker.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.class_archive import run_archive
from trueup.engine.archive import Archive

# Two sessions, one after the other: each has a Java process of its own, with its own settings, which ends. A stop does
# not wait for that: the first process cannot end before. What fails after its stop is no error. The archive is damaged
# before the second one.
USE = """
import json, signal, sys
from pathlib import Path
from trueup.engine.jvm import own_process, stop_session, when_stopped
from trueup.engine.session import start_session
from trueup.testing.processes import wait_until

class Held:
    def __init__(self, process):
        self.process, self.input = process, process.stdin

    def close(self):
        # Java ends when its input is closed.
        self.process.send_signal(signal.SIGSTOP)
        self.input.close()

def session(memory):
    session = start_session(slots=1, conf={"spark.driver.memory": memory, "spark.log.level": "WARN"})
    process = own_process()
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    largest = session.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20
    seen.append([session.sparkContext.defaultParallelism, "/spark-" in maps, largest])
    if memory == "500m":
        process.stdin = Held(process)
        when_stopped(lambda: 1 / 0)
    stop_session(session)
    if memory == "500m":
        assert process.poll() is None
        process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: process.poll() is not None, 60)
    assert process.returncode == 0

seen = []
session("500m")
archive = Path(sys.argv[1])
with archive.open("r+b") as file:
    file.seek(archive.stat().st_size // 2)
    file.write(bytes([255]) * 4096)
session("700m")
print(json.dumps(seen))
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    """The archive of this run, copied to an empty cache; processes that make another one are ended after the test."""
    original = run_archive()
    cache = tmp_path / "cache" / "trueup"
    cache.mkdir(mode=0o700, parents=True)
    for suffix in (".jsa", ".json"):
        shutil.copy2(Path(original.path).with_suffix(suffix), cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    yield Archive(str(cache / Path(original.path).name), original.base, original.java, original.conf)
    for maker in _makers(tmp_path):
        # Some end meanwhile.
        with suppress(psutil.NoSuchProcess):
            for process in (*maker.children(recursive=True), maker):
                process.kill()


def _makers(tmp_path: Path) -> list[psutil.Process]:
    """Return the processes that make an archive in the background, without their children."""
    found = []
    for process in psutil.process_iter():
        try:
            if "trueup.engine.archive_maker" in process.cmdline() and str(tmp_path / "cache") in str(process.environ()):
                found.append(process)
        except psutil.Error:
            continue
    numbers = {process.pid for process in found}
    return [process for process in found if _parent(process) not in numbers]


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def test_an_archive_is_used_and_made_again_if_it_is_damaged(archive: Archive, tmp_path: Path) -> None:
    assert archive.is_ready()
    done = subprocess.run(
        [sys.executable, "-c", USE, archive.path], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = json.loads(done.stdout)
    assert (first[:2], second[:2]) == ([1, True], [1, False])
    assert first[2] < 505 < 650 < second[2]
    # Java ignored the damaged one, and it is made again in the background.
    assert not Path(archive.path).exists()
    assert len(_makers(tmp_path)) == 1
    # Not again soon, because Java may refuse the next one too.
    assert archive.failure.read_text() == "Java did not use the archive"
