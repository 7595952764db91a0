"""A command collects less garbage than Python does by default: its process ends sooner."""

from __future__ import annotations

import subprocess
import sys

# Functions that are registered first run last.
SHOW = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000))
gc.set_threshold({threshold})
from trueup.cli.main import main
sys.argv = ["trueup", "--version"]
main()
"""


def test_a_command_collects_less_garbage() -> None:
    for threshold, expected in ((700, "50000 True"), (90_000, "90000 True")):
        command = [sys.executable, "-c", SHOW.format(threshold=threshold)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert shown.splitlines()[-1] == expected
