"""The Python that Spark starts for its workers: `python3` of the PATH, unless PYSPARK_PYTHON was set in time.

In a virtual environment that is not activated, that is another Python, which does not have trueup.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from trueup import __version__
from trueup.errors import EngineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_DEFAULT = "python3"
_CHECK_SECONDS = 60


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
