"""The Python that Spark starts for its workers: `python3` of the PATH, unless PYSPARK_PYTHON was set in time.

In a virtual environment that is not activated, that is another Python, which does not have trueup.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trueup import __version__
from trueup.engine.cache import cache_folder
from trueup.engine.java import can_be_passed, write_script
from trueup.errors import EngineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_DEFAULT = "python3"
_CHOICES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_CHECK_SECONDS = 60
# Removes the zip files of PySpark and of py4j, in this order; Spark may add them twice. What follows them stays.
_WRAPPER = """#!/bin/sh
while case ${{PYTHONPATH-}} in */py4j-*-src.zip:*) ;; *) false ;; esac; do
    PYTHONPATH=${{PYTHONPATH#*/py4j-*-src.zip:}}
done
export PYTHONPATH
exec {python} "$@"
"""


def compiled_python() -> str:
    """Return the path of a script that starts this Python with its own PySpark; '' if that may not be the right one.

    Spark puts a zip file with the same modules before it, and no process can keep what it has compiled of them: each
    one would compile them again.
    """
    import pyspark

    own = Path(pyspark.__file__)
    # The scripts of another Spark may have another PySpark, and another Python may have none.
    is_chosen = any(os.environ.get(name, sys.executable) != sys.executable for name in _CHOICES)
    is_chosen |= ".zip" in os.environ.get("PYTHONPATH", "")
    if is_chosen or Path(os.environ.get("SPARK_HOME") or own.parent) != own.parent or _found_by_python() != str(own):
        return ""
    text = _WRAPPER.format(python=shlex.quote(sys.executable))
    # Not a temporary file: these are removed after some days, and Spark may run for weeks.
    folder = cache_folder()
    if folder is None or not can_be_passed(folder):
        return ""
    path = folder / f"python-{hashlib.sha256(os.fsencode(text)).hexdigest()[:16]}"
    try:
        write_script(path, text)
    except OSError:
        return ""
    # Not on a disk without the right to execute files.
    return str(path) if os.access(path, os.X_OK) else ""


def _found_by_python() -> str:
    """Return the file of PySpark that a new process of this Python finds; this one may have found another by itself."""
    code = "import importlib.util; print(importlib.util.find_spec('pyspark').origin)"
    with suppress(OSError):
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        return found.stdout.strip()
    return ""


def use_this_python(session: SparkSession) -> None:
    """Let a running session start its workers with this Python, unless the user chose another one.

    On a cluster, the path may not exist on the executors: there the session stays as it is.
    """
    context = _context_of(session)
    if context is None or "PYSPARK_PYTHON" in os.environ or context.pythonExec != _DEFAULT:
        return
    # Only spark-submit applies this setting.
    configured = context.getConf().get("spark.pyspark.python")
    if configured or str(context.master).startswith("local"):
        context.pythonExec = configured or sys.executable


def check_python(session: SparkSession) -> None:
    """Raise EngineError if the Python of the workers does not have this version of trueup on this machine.

    Spark creates data sources on the driver, with the same Python as on the executors.
    """
    context = _context_of(session)
    # With own modules (--py-files), workers may find more than their Python has.
    if context is None or context._python_includes:
        return
    python = shutil.which(context.pythonExec) or context.pythonExec
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return
    reason = _why_unfit(python)
    if reason:
        raise EngineError(
            f"Spark starts its Python workers with {python}, which {reason}",
            cure=f"set PYSPARK_PYTHON={sys.executable} before the Spark session is started, or activate the virtual"
            " environment; on a cluster, use a path of a Python with trueup that the driver and all executors have",
        )


def _context_of(session: SparkSession) -> SparkContext | None:
    """Return the context of a session; None through Spark Connect, where the server chooses the Python."""
    try:
        return session.sparkContext
    except Exception:
        return None


def _why_unfit(python: str) -> str:
    try:
        done = subprocess.run(
            [python, "-c", "import trueup; print(trueup.__version__)"],
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return "does not exist"
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "No module named" in done.stderr:
        return f"does not have trueup ({done.stderr.strip().splitlines()[-1]})"
    version = done.stdout.strip()
    return f"has trueup {version}, this process has trueup {__version__}" if version not in ("", __version__) else ""
