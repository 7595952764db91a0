"""Start Spark: on this machine, on a cluster's master, or through Spark Connect."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from trueup.config.secrets import mask
from trueup.engine.archive import Archive, archive_for
from trueup.engine.java import can_be_passed, find_java
from trueup.engine.jvm import (
    end_context,
    end_own_process,
    forget_ended,
    log_accumulator_errors,
    own_gateway,
    own_process,
    when_stopped,
    why_ended,
)
from trueup.engine.launch import Launch
from trueup.engine.python import compiled_python
from trueup.engine.scratch import ScratchFolder, closing_on_error
from trueup.engine.sealed import is_here
from trueup.errors import EngineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
# Small and fast to start: the nodes hash the rows, and the Python workers compare them.
_LOCAL = {
    "spark.driver.memory": "512m",
    # With the C1 compiler alone the JVM reserves 48 MB for compiled code. A long session needs more: otherwise code
    # is discarded and compiled again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC"
    " -Xshare:auto -Xss512k",
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    # Every user of the machine can connect: without the secret, which Spark makes, it would run what they send, and
    # give them what it has sent to its workers.
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
    # Spark remembers what it has run, also without its page: a stream runs millions of jobs.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "2000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}
# For a session that runs for weeks: without limits, Java first uses its whole heap before it collects what it does not
# need. Spark requires a heap of 450 MB, and uses 100 MB of it. After a time of much work, the heap shrinks when Spark
# asks for a collection, which takes 0.2 s.
LASTING_CONF = {
    "spark.driver.extraJavaOptions": f"{_LOCAL['spark.driver.extraJavaOptions']} -Xms64m -Xmn48m"
    " -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40 -XX:-ShrinkHeapInSteps",
    "spark.cleaner.periodicGC.interval": "5min",
}
# The class that writes the checkpoints of streams; its package depends on the version of Spark.
_FILE_MANAGER = "FileSystemBasedCheckpointFileManager"
_ALWAYS = {
    "spark.app.name": "trueup",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.log.level": "ERROR",
    # PySpark would ask Java for several values at each call that builds a query, to name the line of Python in errors.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark shows its settings in its log and its page: more names of secrets than its default has.
    "spark.redaction.regex": "(?i)secret|password|passwd|pwd|passphrase|token|credential"
    "|(access|account|api|private)[._-]?key",
}


# Variables with which PySpark uses Spark Connect in the whole process, and their values.
_CONNECT_VARIABLES = {"SPARK_REMOTE": ".+", "SPARK_API_MODE": "connect"}
# A Spark Connect server is reached within this time.
CONNECT_SECONDS = 30.0
# Java ends within this time after a start that failed.
_END_SECONDS = 5.0
# A busy machine needs this time for a start.
LEAST_SECONDS = 120.0
# The prefix of the folders for temporary files of Java.
_FILES = "trueup-files-"
_SOCKETS = "trueup-sockets-"
# The path of a Unix socket has at most 103 bytes on some systems; its name has 42.
_LONGEST_FOLDER = 60


def lasting_conf() -> dict[str, str]:
    """Return the settings of a session on this machine that runs for weeks.

    By default, Spark starts several processes for each of the two checkpoint files of a batch, which takes 0.1 s.
    """
    found = _class_in_jars("spark-sql_*.jar", _FILE_MANAGER)
    return {**LASTING_CONF, **({"spark.sql.streaming.checkpointFileManagerClass": found} if found else {})}


def _class_in_jars(pattern: str, name: str) -> str:
    """Return the full name of a class of Spark, or ''."""
    from pyspark.find_spark_home import _find_spark_home

    for jar in (Path(_find_spark_home()) / "jars").glob(pattern):
        with suppress(OSError, BadZipFile), ZipFile(jar) as file:
            for entry in file.namelist():
                if entry.endswith(f"/{name}.class"):
                    return entry.removesuffix(".class").replace("/", ".")
    return ""


class _JavaEnded(EngineError):
    """Java has ended while Spark was started, and was not killed."""


def start_session(
    *,
    slots: int,
    master: str = "",
    remote: str = "",
    conf: Mapping[str, str] | None = None,
    class_archive: bool = True,
    launch: Launch | None = None,
    seconds: float = 0.0,
) -> SparkSession:
    """Start a Spark session; `conf` takes precedence over the settings of this module.

    A start on this machine that takes more than `seconds`, and two minutes at least, is ended (0: no limit).
    """
    _prepare()
    try:
        if remote:
            return _connect(remote, conf or {})
        _check_mode()
        launch = launch or Launch()
        with launch.limited(max(seconds, LEAST_SECONDS) if seconds and is_here(master) else 0.0):
            return _start(slots, master, conf or {}, class_archive, launch)
    except EngineError:
        raise
    except ImportError as error:
        raise EngineError(
            f"Spark failed to start: {str(error).splitlines()[0]}",
            cure="pip install 'trueup[connect]'" if remote else "pip install trueup again, with its dependencies",
        ) from error
    except Exception as error:
        raise EngineError(
            f"Spark failed to start: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            cure="check the master or remote address and the [spark] settings, or use --engine local",
        ) from error


class _Remembered:
    """A Java class whose members are asked for once."""

    def __init__(self, java_class: Any) -> None:
        self._java_class = java_class

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._java_class, name)
        setattr(self, name, member)
        return member


def _remembering(session: SparkSession) -> SparkSession:
    """Let PySpark remember the class of its functions: it asks Java for it, and for the function, at every use."""
    view: Any = session.sparkContext._jvm
    # Versions of PySpark use the short name, or the full one.
    for name in ("functions", "org.apache.spark.sql.functions", "PythonUtils"):
        setattr(view, name, _Remembered(getattr(view, name)))
    return session


def _prepare() -> None:
    """Set the variables and the log levels that Spark in this process needs."""
    # Workers run `python3` of the PATH by default; they must run this Python, which has this package.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = os.environ.get(name) or sys.executable
    # Spark starts workers with `python -m`, which would import from the working folder what this process does not.
    if not {"", os.getcwd()} & set(sys.path):
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    # Errors are raised as TrueupError; these loggers would print them again.
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_mode() -> None:
    """Raise EngineError if PySpark would look for a Spark Connect server, which the settings do not name."""
    for name, meaning in _CONNECT_VARIABLES.items():
        if re.fullmatch(meaning, os.environ.get(name, ""), re.IGNORECASE):
            raise EngineError(
                f"the variable {name} lets PySpark use Spark Connect, and the settings of trueup name no server",
                cure=f"unset {name}, or set remote in [spark] to the address of the server",
            )


def existing_session() -> SparkSession | None:
    """Return the session that this process already has, as in a notebook; it must not be stopped."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    # A session through Spark Connect has no context (Databricks notebooks).
    connect = sys.modules.get("pyspark.sql.connect.session")
    return connect.SparkSession.getActiveSession() if connect is not None else None


def _connect(remote: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    _check_server(remote)
    session = SparkSession.builder.remote(remote).getOrCreate()
    fixed = [key for key, value in conf.items() if not _set(session, key, value)]
    if fixed:
        warnings.warn(
            f"the Spark Connect server does not accept {', '.join(fixed)}: set them when the server is started",
            stacklevel=2,
        )
    return session


def _check_server(remote: str) -> None:
    """Raise EngineError if a Spark Connect server cannot be reached: PySpark would try for many minutes."""
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client import DefaultChannelBuilder

    builder = DefaultChannelBuilder(remote)
    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            raise EngineError(
                f"the Spark Connect server {builder.endpoint} cannot be reached: no connection within"
                f" {CONNECT_SECONDS:.0f} s",
                cure="check the address, that the server runs, and use_ssl if it requires TLS, or use --engine local",
            ) from None


def _set(session: SparkSession, key: str, value: str) -> bool:
    """Set an option of a running server; return whether it has the value now."""
    try:
        session.conf.set(key, value)
    except Exception as error:
        if "CANNOT_MODIFY" not in str(error):
            raise
        return bool(session.conf.get(key, None) == value)
    return True


def start_to_archive(part: Path, archive: Archive) -> SparkSession:
    """Start a session on this machine whose Java process writes a class-data archive when it ends."""
    base = f"-XX:SharedArchiveFile={shlex.quote(archive.base)} " if archive.base else ""
    _prepare()
    settings = {**_ALWAYS, **_LOCAL, **archive.conf}
    return _launch("local[2]", settings, Launch(), f"{base}-XX:ArchiveClassesAtExit={shlex.quote(str(part))}")


def _start(slots: int, master: str, conf: Mapping[str, str], class_archive: bool, launch: Launch) -> SparkSession:
    java = find_java(launch.popen)
    os.environ["JAVA_HOME"] = str(java)
    settings = {**_ALWAYS, **(_LOCAL if master.startswith("local") or not master else {}), **conf}
    # Retry a failed slice up to 4 times, as on a cluster.
    master = master or f"local[{slots},4]"
    archive = archive_for(java, settings) if class_archive else None
    if archive is None:
        return _launch(master, settings, launch)
    if not archive.is_ready():
        session = _launch(master, settings, launch)
        when_stopped(archive.start_making)
        return session
    try:
        session = _launch(master, settings, launch, archive.options())
    except _JavaEnded:
        # Whatever the reason: an archive must not prevent a start. If Java does not start without it either, the
        # archive is not the reason.
        session = _launch(master, settings, launch)
        archive.discard()
        when_stopped(archive.make_again)
    else:
        when_stopped(archive.used if archive.is_mapped_by(own_process()) else archive.make_again)
    return session


def _launch(master: str, settings: Mapping[str, str], launch: Launch, options: str = "") -> SparkSession:
    """Start Java with additional options, unless this process has a Java process, and a session."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    python, context = "", None
    with closing(ScratchFolder("trueup-spark-")) as folder:
        log = folder.path / "jvm.log"
        with open(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
            try:
                forget_ended()
                if SparkContext._gateway is None:
                    files = ScratchFolder(_FILES)
                    python = compiled_python() if is_here(master) else ""
                    options = f"{_temporary(files.path)} {options}".strip()
                    settings = _with_sockets(settings, files)
                    is_local = master.startswith("local")
                    prepared = _start_settings(folder.path, settings, options, python, is_local=is_local)
                    # The log of the JVM is shown only if it fails to start.
                    with closing_on_error(files), prepared, launch.recorded(folder.path):
                        gateway = launch_gateway(None, {"stderr": out, "stdout": out})  # type: ignore[no-untyped-call]
                    own_gateway(gateway, files)
                context = SparkContext(conf=SparkConf().setMaster(master).setAll(list(settings.items())))
                log_accumulator_errors(context)
                # Only spark-submit applies this setting; this driver uses PYSPARK_PYTHON otherwise.
                context.pythonExec = settings.get("spark.pyspark.python", python or context.pythonExec)
                return _remembering(SparkSession(context))
            except Exception as error:
                # Java is asked for the text of its errors: not after its end.
                text = str(error)
                failure = _start_error(log, why_ended() or launch.why_ended(), error, text)
                _abandon(context)
                raise failure from RuntimeError(text)
            except BaseException:
                # Ctrl-C.
                _abandon(context)
                launch.end()
                raise


def _abandon(context: SparkContext | None) -> None:
    """Stop a context without a session, and end the Java process: the next start needs a new one."""
    if context is not None:
        end_context(context, context.stop)
    end_own_process(_END_SECONDS)


def _temporary(folder: Path) -> str:
    """Return the option that lets Java write temporary files to a private folder.

    Spark writes rows to the disk (shuffles, results that it keeps) with the rights that the umask allows.
    """
    return f"-Djava.io.tmpdir={shlex.quote(str(folder))}" if can_be_passed(folder) else ""


def _with_sockets(settings: Mapping[str, str], files: ScratchFolder) -> Mapping[str, str]:
    """Return the settings, with another folder for Unix sockets if the path of this one is too long for them.

    Python workers run what they get from a socket, so only this user may open the folder.
    """
    if len(os.fsencode(files.path)) <= _LONGEST_FOLDER and can_be_passed(files.path):
        return settings
    sockets = ScratchFolder(_SOCKETS, Path("/tmp"))
    files.also = sockets
    return {"spark.python.unix.domain.socket.dir": str(sockets.path), **settings}


@contextmanager
def _start_settings(
    folder: Path, settings: Mapping[str, str], options: str, python: str, *, is_local: bool
) -> Iterator[None]:
    """Let spark-submit read the settings from a private file: every user can read the command line of a process."""
    path = folder / "spark.properties"
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items()]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(lines)
    arguments = f"--properties-file {shlex.quote(str(path))} --load-spark-defaults"
    arguments += " " + os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    # Options of the settings come later, and take precedence.
    options = " ".join(filter(None, (options, os.environ.get("SPARK_SUBMIT_OPTS"))))
    # Spark has 300 threads. With an arena for each few of them, the memory of the C library grows for minutes.
    arenas = os.environ.get("MALLOC_ARENA_MAX", "2")
    # The address of Spark's page, which asks for no password: other machines must not reach it.
    address = {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP") or _LOOPBACK} if is_local else {}
    # Java starts this Python to look data sources up.
    pythons = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), python) if python else {}
    variables = {"PYSPARK_SUBMIT_ARGS": arguments, "SPARK_SUBMIT_OPTS": options, "MALLOC_ARENA_MAX": arenas}
    with _variables(**variables, **address, **pythons):
        yield


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _escaped(text: str) -> str:
    """Escape a key or a value for a Java properties file."""
    return re.sub(r"[\\\s=:#!]", lambda match: f"\\u{ord(match.group()):04x}", text)


def _start_error(log: Path, ended: str, error: Exception, text: str) -> EngineError:
    """Return why Spark did not start: what Java raised or wrote, or how its process ended."""
    written = log.read_text(errors="replace")
    reason = "" if "killed" in ended else _reason(text if _RAISED.search(text) else written)
    has_ended = ended or "JAVA_GATEWAY_EXITED" in text
    # A process that was killed, also the one that prints the command of Java, says nothing about the archive.
    is_launcher = _LAUNCHER_KILLED in written
    kind = EngineError if is_launcher or re.search("SIGKILL|SIGTERM", ended) or not has_ended else _JavaEnded
    if not reason and has_ended:
        return kind(
            f"Spark failed to start: its Java process {(not is_launcher and ended) or _UNKNOWN_END}",
            cure="check the log of the system for the reason, often too little memory, then JAVA_HOME (17 or newer) and"
            " the [spark] settings, or use --engine local",
        )
    home = "SPARK_HOME, " if os.environ.get("SPARK_HOME") else ""
    cure = f"check {home}JAVA_HOME (17 or newer) and the [spark] settings, or use --engine local"
    if "Master URL" in reason:
        cure = "set master to local[N], spark://HOST:PORT, yarn or k8s://ADDRESS, or use --engine local"
    elif home and isinstance(error, OSError):
        cure = "unset SPARK_HOME, or set it to the folder of a Spark, or use --engine local"
    return kind(mask(f"Spark failed to start: {reason or text}"), cure=cure)


# An error of Java in the text of an error of PySpark.
_RAISED = re.compile(r"^: \S+", re.MULTILINE)
_UNKNOWN_END = "was killed, or ended without a message"
# What the script prints if the launcher was killed.
_LAUNCHER_KILLED = ": bad array subscript"
# Warnings are no reason, and what Java adds to each reason is none either.
_NOISE = re.compile(
    r"$|at |WARNING:|(NOTE: )?Picked up \w+: |\[\S+\]\[warning\]"
    r"|\S+ \S+ (WARN|INFO) |Using Spark's|Setting (default|Spark) log level|To adjust logging"
    r"|An error occurred while calling |\S+ \S+ ERROR SparkContext: Error initializing"
    r"|Suppressed: |Error: (Could not create the Java|A fatal exception has|A JNI error has)|Error occurred during init"
    rf"|.*{_LAUNCHER_KILLED}$"
)
_BEFORE_ERROR = re.compile(r'^(Exception in thread "[^"]*" |Caused by: |: )')


def _reason(text: str) -> str:
    """Return the first error in what Java wrote; of one without a text, its cause."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [_BEFORE_ERROR.sub("", line, count=1) for line in lines if not _NOISE.match(line)]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    with_text = [line for line in errors if not re.fullmatch(r"[\w.$]+", line)]
    return (with_text or errors or lines or [""])[0][:300]
