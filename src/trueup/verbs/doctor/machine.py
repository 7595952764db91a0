"""Checks of this machine: Python, packages, Java."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from trueup.engine.java import JavaHome
from trueup.errors import EngineError
from trueup.verbs.doctor.guarded import Background
from trueup.verbs.doctor.model import DoctorRequest, Finding, Level, fail, graded, ok, warn

HERE = "this machine"
# The version of Java is known only after it was started.
JAVA_SECONDS = 90.0
_MINIMUM_PYTHON = (3, 10)
PACKAGES = ("psycopg", "pyspark", "pandas", "pyarrow")


def check_python() -> Iterator[Finding]:
    """Yield findings about Python and the required packages."""
    python = f"Python {platform.python_version()} in {sys.prefix}"
    if sys.version_info[:2] < _MINIMUM_PYTHON:
        yield fail("python", HERE, f"{python} is too old", "use Python 3.10 or newer")
    else:
        yield ok("python", HERE, f"{python}, trueup {_version('trueup') or 'from its sources'}")
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name, number in versions.items() if not number]
    if missing:
        cure = "reinstall trueup with its dependencies: pip install trueup"
        yield fail("packages", HERE, f"not installed: {', '.join(missing)}", cure)
    elif int((versions["pandas"] or "0").split(".")[0]) >= 3:
        yield warn("packages", HERE, f"pandas {versions['pandas']}: Spark supports version 2", "pip install 'pandas<3'")
    else:
        yield ok("packages", HERE, ", ".join(f"{name} {number}" for name, number in versions.items()))


def check_java(request: DoctorRequest, java: Background[JavaHome]) -> Iterator[Finding]:
    """Yield a finding about the Java that Spark would use."""
    level = level_without_java(request)
    try:
        home = java.result(JAVA_SECONDS)
    except EngineError as error:
        if level == "OK":
            yield ok("java", HERE, "no Java for Spark, and none is needed with these settings")
        else:
            yield graded(level, "java", HERE, error.message, f"{error.cure}, or set engine = local")
        return
    yield ok("java", HERE, f"Java {home.version} from {home.origin}: {home}")


def level_without_java(request: DoctorRequest) -> Level:
    """Return the level of a missing Java: not all settings need it."""
    spark = request.spark
    if spark.engine == "local" or (spark.remote and spark.engine != "spark"):
        return "OK"
    return "FAIL" if spark.engine == "spark" or spark.master else "WARN"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
