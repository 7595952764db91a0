"""`trueup validate start --detach`: runs the same command in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.config.files import open_private
from trueup.config.process import own_command
from trueup.errors import CheckFailed, TrueupError

if TYPE_CHECKING:
    from trueup.api.validate import Validation

_START_SECONDS = 60.0


def start_detached(validation: Validation, log_file: str | None) -> tuple[Path, int]:
    """Start the command in a session of its own, and wait until it validates; return its log file and process number.

    A process that cannot start is an error of this command, not only a line in the log file.
    """
    name = validation.name
    if validation.status().state == "running":
        raise CheckFailed([f"validation {name} is already running"], cure=f"see trueup validate status {name}")
    before = validation.started_at()
    path = Path(log_file or f"trueup-validate-{name}.log").absolute()
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with open(open_private(path, os.O_WRONLY | os.O_APPEND), "ab") as log:
        size = log.tell()
        process = subprocess.Popen(
            [*own_command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != "TRUEUP_VALIDATE_START_DETACH"},
        )
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if validation.started_at() != before:
            return path, process.pid
        time.sleep(0.1)
    output = path.read_bytes()[size:].decode(errors="replace").strip()
    if process.poll() is None:
        raise TrueupError(
            f"validation {name} (process {process.pid}) has not started within {_START_SECONDS:g} s: {output}",
            cure=f"see its log {path}",
        )
    # Log records, which start with a time, come before the error.
    reason, _, cure = f"\n{output}".rpartition("\ntrueup: ")[2].strip().partition("\n  what to do: ")
    see = f"see its log {path}"
    raise TrueupError(f"validation {name} could not start: {reason}", cure=f"{cure}; {see}" if cure else see)
