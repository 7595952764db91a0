"""Does Spark really start, and do its workers have what a run needs? The only way to know is to try."""

from __future__ import annotations

import platform
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trueup.engine.choose import EngineStarter
from trueup.engine.java import JavaHome
from trueup.engine.work import Failure, Room, Tasks
from trueup.errors import EngineError, TrueupError
from trueup.verbs.doctor.guarded import Background, Overdue
from trueup.verbs.doctor.machine import HERE, JAVA_SECONDS, level_without_java
from trueup.verbs.doctor.model import Finding, fail, graded, ok, warn
from trueup.verbs.doctor.request import DoctorRequest

# A master that does not answer is given up by Spark itself, after a minute.
SPARK_SECONDS = 150.0
KNOCK_SECONDS = 5.0
_COMPARED = ("trueup", "psycopg", "pandas", "pyarrow")


class NoJava(EngineError):
    """Spark was not tried."""


@dataclass(frozen=True)
class Tried:
    """A Spark that started and worked: how long both took, and what one of its workers is."""

    started: float
    worked: float
    spark: str
    worker: Mapping[str, str]


def is_wanted(request: DoctorRequest) -> bool:
    """Whether to start Spark for the check."""
    return request.start_spark and request.spark.engine != "local"


def try_out(request: DoctorRequest, java: Background[JavaHome]) -> Tried:
    """Start Spark as a run would, and let a worker do a task."""
    if not request.spark.remote:
        try:
            java.result(JAVA_SECONDS)
        except EngineError as error:
            raise NoJava("not checked, because there is no Java for it", cure=error.cure) from None
    _knock(request.spark.remote or request.spark.master)
    begun = time.monotonic()
    settings = request.settings
    starter = EngineStarter(
        replace(request.spark, engine="spark"),
        concurrency_factor=settings.concurrency_factor,
        max_connections=settings.max_connections,
    )
    with closing(starter):
        engine: Any = starter.get(0)
        started = time.monotonic()
        results = list(engine.run(_describe, Tasks([None])))
        worked = time.monotonic()
        for result in results:
            if isinstance(result, Failure):
                raise result.error
        return Tried(started - begun, worked - started, str(engine.session.version), results[0])


def _knock(url: str) -> None:
    """Is anybody there? Spark itself would take a minute and a half to find out, and not say it as clearly."""
    found = re.match(r"(spark|sc)://([^/;]+)", url)
    if not found:
        return
    reasons = []
    for place in found[2].split(","):
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "15002" if found[1] == "sc" else "7077")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {error}")
    raise EngineError(
        f"nobody answers at {', '.join(reasons)}", cure="start it, check its address, or use --engine local"
    )


def check(request: DoctorRequest, started: Background[Tried] | None) -> Iterator[Finding]:
    """What came of it."""
    if started is None:
        why = "engine = local does not use it" if request.spark.engine == "local" else "--no-spark was given"
        yield ok("spark", HERE, f"not checked, because {why}")
        return
    try:
        tried = started.result(SPARK_SECONDS)
    except NoJava as error:
        yield graded(level_without_java(request), "spark", HERE, error.message, error.cure)
        return
    except Overdue as error:
        cure = "check the master or remote address and the [spark] settings, or use --engine local"
        yield fail("spark", _place(request), f"Spark gave {error.message}", cure)
        return
    except TrueupError as error:
        yield fail("spark", _place(request), error.message, error.cure)
        return
    took = f"started in {tried.started:.1f} s, and did a task in {tried.worked:.1f} s"
    yield ok("spark", _place(request), f"Spark {tried.spark} {took}")
    yield from _check_worker(tried.worker)


def _check_worker(worker: Mapping[str, str]) -> Iterator[Finding]:
    """A worker on another machine may have another Python, or other packages."""
    driver = _about()
    differing = [name for name in driver if worker.get(name) != driver[name]]
    if not differing:
        yield ok("spark", "its workers", f"Python {worker['python']} and packages as here")
        return
    told = ", ".join(f"{name} {worker.get(name) or 'is not there'} (here {driver[name]})" for name in differing)
    cure = "install the same versions on the executors, or point PYSPARK_PYTHON to a Python that has them"
    finding = fail if "trueup" in differing or not worker.get("psycopg") else warn
    yield finding("spark", "its workers", f"the workers are not as this machine: {told}", cure)


def _describe(task: object, room: Room) -> Iterable[dict[str, str]]:
    """The work of the try-out: what the worker is."""
    return [_about()]


def _about() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _COMPARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _place(request: DoctorRequest) -> str:
    return "remote" if request.spark.remote else "master" if request.spark.master else HERE
