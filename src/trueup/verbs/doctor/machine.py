"""Is what a run needs installed on this machine: Python, the packages, Java?"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from trueup.engine.java import JavaHome
from trueup.errors import EngineError
from trueup.verbs.doctor.guarded import Background
from trueup.verbs.doctor.model import Finding, Level, fail, graded, ok, warn
from trueup.verbs.doctor.request import DoctorRequest

HERE = "this machine"
# Finding it may take starting it, to ask for its version.
JAVA_SECONDS = 90.0
_OLDEST_PYTHON = (3, 10)
_PACKAGES = ("psycopg", "pyspark", "pandas", "pyarrow")


def check_python() -> Iterator[Finding]:
    """Python and the packages that the work is done with."""
    python = f"Python {platform.python_version()} in {sys.prefix}"
    if sys.version_info[:2] < _OLDEST_PYTHON:
        yield fail("python", HERE, f"{python} is too old", "use Python 3.10 or newer")
    else:
        yield ok("python", HERE, f"{python}, trueup {_version('trueup') or 'from its sources'}")
    found = {name: _version(name) for name in _PACKAGES}
    lacking = [name for name, number in found.items() if not number]
    if lacking:
        yield fail(
            "packages", HERE, f"not installed: {', '.join(lacking)}", "pip install trueup again, with all it needs"
        )
    elif int((found["pandas"] or "0").split(".")[0]) >= 3:
        yield warn("packages", HERE, f"pandas {found['pandas']}: Spark is made for 2", "pip install 'pandas<3'")
    else:
        yield ok("packages", HERE, ", ".join(f"{name} {number}" for name, number in found.items()))


def check_java(request: DoctorRequest, java: Background[JavaHome]) -> Iterator[Finding]:
    """The Java that Spark would be started with."""
    level = level_without_java(request)
    try:
        found = java.result(JAVA_SECONDS)
    except EngineError as error:
        if level == "OK":
            yield ok("java", HERE, "none that Spark could use, and none is needed here")
        else:
            yield graded(level, "java", HERE, error.message, f"{error.cure}, or set engine = local")
        return
    yield ok("java", HERE, f"Java {found.version} from {found.origin}: {found}")


def level_without_java(request: DoctorRequest) -> Level:
    """How bad it is to have no Java: some runs never ask for it."""
    spark = request.spark
    if spark.engine == "local" or (spark.remote and spark.engine != "spark"):
        return "OK"
    return "FAIL" if spark.engine == "spark" or spark.master else "WARN"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
