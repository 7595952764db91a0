"""Temporary folders of processes that were killed are removed; those of running processes stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trueup.engine.scratch import ScratchFolder, remove_abandoned

_HOLD = "import sys, time; from trueup.engine.scratch import ScratchFolder as S;"
_HOLD += "print(S('trueup-x-').path, flush=True); time.sleep(600)"


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert other.stdout is not None
    left = Path(other.stdout.readline().strip())
    (left / "1" / "offsets").mkdir(parents=True)
    mine = ScratchFolder("trueup-x-")
    assert left.exists()
    assert mine.path.exists()
    other.send_signal(signal.SIGKILL)
    other.wait()
    remove_abandoned("trueup-x-")
    assert not left.exists()
    assert mine.path.exists()
    mine.close()
    assert list(tmp_path.iterdir()) == []
