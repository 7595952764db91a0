"""The command line that starts trueup in a new process."""

from __future__ import annotations

import sys

# The working folder is the first entry of the module path of `python -c`: a file trueup.py there must not be run.
_RUN = "import sys; sys.path.remove(''); from {module} import main; main()"


def own_command() -> list[str]:
    """Return the start of a command that runs this trueup with this Python, and nothing of the working folder."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", "trueup"]
    return [sys.executable, "-c", _RUN.format(module="trueup.cli.main")]


def own_program(module: str) -> list[str]:
    """Return the command that runs `main` of a module of trueup, in the same way."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module]
    return [sys.executable, "-c", _RUN.format(module=module)]
