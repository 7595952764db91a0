"""Checks of Spark: starts it as a run would, runs a task, and compares the versions of the worker."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

from trueup.config.settings import SparkSettings
from trueup.config.transport import is_local_host
from trueup.engine.choose import EngineStarter
from trueup.engine.java import JavaHome
from trueup.engine.sealed import is_here
from trueup.engine.work import Failure, Room, Tasks
from trueup.errors import EngineError, TrueupError
from trueup.verbs.doctor.guarded import Background, Overdue
from trueup.verbs.doctor.machine import HERE, JAVA_SECONDS, level_without_java
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, graded, ok, warn

# Spark stops trying to reach a master that does not answer after one minute.
SPARK_SECONDS = 150.0
CONNECT_SECONDS = 5.0
# What keeps the addresses of nodes, which Spark sends to its workers, from others.
_AUTHENTICATE = "spark.authenticate"
_ENCRYPTING = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
PROTECTING = (_AUTHENTICATE, *_ENCRYPTING)
_COMPARED = ("trueup", "psycopg", "pandas", "pyarrow")


class NoJava(EngineError):
    """Spark was not started, because there is no Java."""


@dataclass(frozen=True)
class SparkTest:
    """The result of starting Spark and running a task: durations, and the versions of a worker."""

    started: float
    worked: float
    spark: str
    worker: Mapping[str, str]
    # The values of PROTECTING.
    conf: Mapping[str, str]


def is_enabled(request: DoctorRequest) -> bool:
    """Return whether to start Spark for the check."""
    return request.start_spark and request.spark.engine != "local"


def try_out(request: DoctorRequest, java: Background[JavaHome]) -> SparkTest:
    """Start Spark as a run would, and run a task on a worker."""
    if not request.spark.remote:
        try:
            java.result(JAVA_SECONDS)
        except EngineError as error:
            raise NoJava("not checked, because there is no Java", cure=error.cure) from None
    _check_address(request.spark.remote or request.spark.master)
    before = time.monotonic()
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
        session = engine.session
        conf = {name: str(session.conf.get(name, "false")).lower() for name in PROTECTING}
        return SparkTest(started - before, worked - started, str(session.version), results[0], conf)


def _check_address(url: str) -> None:
    """Raise EngineError if no address accepts a connection: Spark itself would take a minute and a half."""
    match = re.match(r"(spark|sc)://([^/;]+)", url)
    if not match:
        return
    reasons = []
    for address in match[2].split(","):
        default = "15002" if match[1] == "sc" else "7077"
        host, _, port = address.rpartition(":") if ":" in address else (address, "", default)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
    raise EngineError(
        f"cannot connect to {', '.join(reasons)}", cure="start the server, check its address, or use --engine local"
    )


def check(request: DoctorRequest, started: Background[SparkTest] | None) -> Iterator[Finding]:
    """Yield the findings of the test."""
    if started is None:
        reason = "engine = local does not use Spark" if request.spark.engine == "local" else "--no-spark is set"
        yield ok("spark", HERE, f"not checked, because {reason}")
        return
    try:
        test = started.result(SPARK_SECONDS)
    except NoJava as error:
        yield graded(level_without_java(request), "spark", HERE, error.message, error.cure)
        return
    except Overdue as error:
        cure = "check the master or remote address and the [spark] settings, or use --engine local"
        yield fail("spark", _target(request), f"Spark: {error.message}", cure)
        return
    except TrueupError as error:
        yield fail("spark", _target(request), error.message, error.cure)
        return
    took = f"started in {test.started:.1f} s, ran a task in {test.worked:.1f} s"
    yield ok("spark", _target(request), f"Spark {test.spark} {took}")
    yield from check_worker(test.worker)
    yield from check_protection(request.spark, test.conf, test.worker)


def check_protection(spark: SparkSettings, conf: Mapping[str, str], worker: Mapping[str, str]) -> Iterator[Finding]:
    """Warn if others can read the passwords that Spark sends to its workers, or run code in them."""
    target = "remote" if spark.remote else "master" if spark.master else HERE
    see = "; see docs/clusters.md"
    is_local = is_here(spark.master, spark.remote)
    if conf[_AUTHENTICATE] != "true":
        text = "everyone who can connect to the driver or an executor can run code there and read passwords of nodes"
        cure = f"set {_AUTHENTICATE} and its secret where the master and the workers are started, and in [spark.conf]"
        if is_local:
            cure = f"remove {_AUTHENTICATE} from [spark.conf] and from the defaults of Spark"
        yield warn("spark", target, f"{_AUTHENTICATE} is not set: {text}", cure + see)
    elif not is_local and not any(conf[name] == "true" for name in _ENCRYPTING):
        text = "passwords of nodes are sent unencrypted between the driver and the executors"
        yield warn("spark", target, f"{_ENCRYPTING[0]} is not set: {text}", f"set it in [spark.conf]{see}")
    else:
        yield ok("spark", target, "connections between the driver and the executors are protected by a secret")
    if spark.remote and not _is_encrypted(spark.remote):
        text = "passwords of nodes are sent unencrypted to the Spark Connect server"
        yield warn("spark", target, text, f"add ;use_ssl=true to the address{see}")
    if worker.get("socket") == "open":
        text = "other users of the machines of the executors can connect to Python workers, and run code in them"
        yield warn("spark", "workers", text, f"start the executors with the umask 077{see}")


def _is_encrypted(remote: str) -> bool:
    """Whether a Spark Connect server is reached through TLS, or on this machine."""
    host = urlsplit(remote).hostname or ""
    return "use_ssl=true" in remote.lower() or is_local_host(host)


def check_worker(worker: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the versions of a worker with those of this machine."""
    driver = installed_versions()
    differing = [name for name in driver if worker.get(name) != driver[name]]
    if not differing:
        yield ok("spark", "workers", f"Python {worker['python']} and the same packages as this machine")
        return
    listed = ", ".join(f"{name} {worker.get(name) or 'not installed'} (here {driver[name]})" for name in differing)
    cure = "install the same versions on the executors, or set PYSPARK_PYTHON to a Python that has them"
    finding = fail if "trueup" in differing or not worker.get("psycopg") else warn
    yield finding("spark", "workers", f"the versions of the workers differ: {listed}", cure)


def _describe(task: object, room: Room) -> Iterable[dict[str, str]]:
    """Return the versions of the worker; the task of the test."""
    return [{**installed_versions(), "socket": _socket()}]


def _socket() -> str:
    """Return "open" if other users can connect to the socket that Python workers of this machine are started by."""
    folder = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_DIR")
    if not folder or not os.stat(folder).st_mode & 0o011:
        return "private"
    mask = os.umask(0o077)
    os.umask(mask)
    # To connect, a user needs the right to write.
    return "private" if mask & 0o022 == 0o022 else "open"


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that must agree."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _COMPARED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def _target(request: DoctorRequest) -> str:
    return "remote" if request.spark.remote else "master" if request.spark.master else HERE
