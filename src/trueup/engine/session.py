"""Starting Spark: in this process on a few cores, on a cluster's master, or through Spark Connect."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trueup.engine.java import find_java
from trueup.errors import EngineError

# Small and quick to start: the rows are hashed by the nodes, and Python workers hold what is compared.
_LOCAL = {
    "spark.driver.memory": "512m",
    # With the quick compiler alone the JVM keeps 48 MB for compiled code: a session that lives on needs more, or it
    # throws code away and compiles it again and again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC"
    " -Xshare:auto -Xss512k",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_ALWAYS = {
    "spark.app.name": "trueup",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.log.level": "ERROR",
}


def start_session(*, slots: int, master: str = "", remote: str = "", conf: Mapping[str, str] | None = None) -> Any:
    """A Spark session; what `conf` says wins over what is chosen here."""
    # Workers run the `python3` of the path unless told: they must be this Python, with this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # What goes wrong reaches the user as our own errors; these loggers would print it once more, at length.
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if remote:
            return _connect(remote, conf or {})
        return _start(slots, master, conf or {})
    except EngineError:
        raise
    except ImportError as error:
        raise EngineError(
            f"Spark did not start: {str(error).splitlines()[0]}",
            cure="pip install 'trueup[connect]'" if remote else "pip install trueup again, with all it needs",
        ) from error
    except Exception as error:
        raise EngineError(
            f"Spark did not start: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            cure="check the master or remote address and the [spark] settings, or use --engine local",
        ) from error


def existing_session() -> Any | None:
    """The session that this process already has, as in a notebook: it is used, and never stopped."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    # A session through Spark Connect has no context, as in the notebooks of Databricks.
    connect = sys.modules.get("pyspark.sql.connect.session")
    return connect.SparkSession.getActiveSession() if connect is not None else None


def _connect(remote: str, conf: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(remote).getOrCreate()
    fixed = [key for key, value in conf.items() if not _set(session, key, value)]
    if fixed:
        warnings.warn(
            f"the Spark Connect server was started with its own {', '.join(fixed)}: change them there", stacklevel=2
        )
    return session


def _set(session: Any, key: str, value: str) -> bool:
    """Whether a running server takes this setting; what concerns its memory or executors it does not."""
    try:
        session.conf.set(key, value)
    except Exception as error:
        if "CANNOT_MODIFY" not in str(error):
            raise
        return bool(session.conf.get(key, None) == value)
    return True


def _start(slots: int, master: str, conf: Mapping[str, str]) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java())
    settings = {**_ALWAYS, **(_LOCAL if master.startswith("local") or not master else {}), **conf}
    # In one process a failed slice is tried again too, as on a cluster.
    spark_conf = SparkConf().setMaster(master or f"local[{slots},4]").setAll(list(settings.items()))
    with tempfile.TemporaryDirectory(prefix="trueup-spark-") as folder:
        log = Path(folder, "jvm.log")
        with open(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
            try:
                # The JVM's own warnings are no news to the user; its log is shown only when it fails to start.
                gateway = launch_gateway(spark_conf, {"stderr": out, "stdout": out})  # type: ignore[no-untyped-call]
                context = SparkContext(gateway=gateway, conf=spark_conf)
            except Exception as error:
                raise EngineError(
                    f"Spark did not start: {_last_words(log) or error}",
                    cure="check JAVA_HOME (17 or newer) and the [spark] settings, or use --engine local",
                ) from error
    # Only spark-submit heeds this setting; a driver like this one takes the variable, which is this Python.
    context.pythonExec = settings.get("spark.pyspark.python", context.pythonExec)
    return SparkSession(context)


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if "Exception" in line or "Error" in line]
    return (told or lines or [""])[0][:300]
