"""A class-data archive for the Java process of Spark: it maps its classes from one file, instead of reading 280 jars.

Java itself ignores an archive of another Java, of other jars or of another class path. An archive is code: it is used
only if no other user can have written it (see `cache`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trueup.config.files import open_private, write_whole
from trueup.config.process import own_program
from trueup.engine.cache import cache_folder, remove_folder
from trueup.engine.java import JavaHome, can_be_passed

# An archive that Java refuses, or that could not be made, is made again after this time, not at the end of every run.
_RETRY_SECONDS = 24 * 3600.0
# Options of the user that choose an archive, or none.
_CHOSEN = re.compile(r"-Xshare:(?!auto)|Archive|AOT")
# Java refuses an archive that was made with other values of these options.
_MATTERING = re.compile(r"-XX:\S*(?:ZGC|Compress|CompactObjectHeaders|ObjectAlignment)\S*")
_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
# The end of the name of a file that Java is writing.
PART = ".part"
# A part of this age belongs to no maker: each of its steps has ended by then.
_PART_SECONDS = 1200.0
_CLASS_PATH = "spark.driver.extraClassPath"
# What the start scripts of Spark put into the class path, and options that may contain more of it.
_VARIABLES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS")
_OPTION_VARIABLES = (
    "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS",
)  # fmt: skip

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Archive:
    """The archive of a Java, a PySpark and a class path; the file may not exist."""

    path: str
    # Java without an archive of its own classes, such as the wheel's, needs this one as a base; else ''.
    base: str
    java: str
    # The settings that the archive depends on.
    conf: Mapping[str, str]

    def is_ready(self) -> bool:
        """Whether the files are complete, and no other user can have written them."""
        return all(_is_own(Path(path)) for path in (self.path, self.base) if path)

    def options(self) -> str:
        """Return the options of Java that use the archive; a damaged one is ignored."""
        return f"-XX:SharedArchiveFile={_quoted(self.path)} -XX:+VerifySharedSpaces"

    def is_mapped_by(self, process: subprocess.Popen[bytes] | None) -> bool:
        """Whether a Java process uses the archive; on systems that do not show it, yes."""
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="surrogateescape") if process else self.path
        except OSError:
            return True
        return self.path in maps

    def used(self) -> None:
        """Record the use: archives that were not used for long are removed. So is what killed makers have left."""
        for path in filter(None, (self.path, self.base)):
            with suppress(OSError):
                os.utime(path)
        remove_parts(Path(self.path).parent)

    def discard(self) -> None:
        """Remove the archive: it will be made again."""
        with suppress(OSError):
            Path(self.path).unlink()

    def make_room(self, path: str) -> None:
        """Remove folders in the place of a file and of its record; raises OSError, before Java does the work."""
        remove_folder(Path(path))
        remove_folder(_record(Path(path)))

    def keep(self, part: Path, path: str) -> None:
        """Give a complete file its name, together with a record of its size."""
        os.chmod(part, 0o600)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        write_whole(_record(Path(path)), json.dumps({"size": size}).encode())
        os.replace(part, path)

    @property
    def failure(self) -> Path:
        """Return the file whose time is that of the last failure: it was not made, or Java refused it."""
        return Path(self.path).with_suffix(".failed")

    def make_again(self) -> None:
        """Make an archive that Java refused again; not often, because the next one may be refused too."""
        if _age(self.failure) > _RETRY_SECONDS:
            self.discard()
            self.start_making()
            self.failed("Java did not use the archive")

    def failed(self, reason: str) -> None:
        """Record a failure, so that the next attempt is not made at once."""
        with suppress(OSError):
            write_whole(self.failure, reason.encode())

    def lock(self) -> int:
        """Return a descriptor of the lock of the maker; raises BlockingIOError if another process makes the archive."""
        lock = open_private(Path(self.path).with_suffix(".lock"), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        return lock

    def remove_left(self) -> None:
        """Remove what killed makers of this archive have left; no other process makes it."""
        path = Path(self.path)
        for left in path.parent.glob(f"{path.name}.*{PART}"):
            with suppress(OSError):
                left.unlink()

    def _is_being_made(self) -> bool:
        try:
            os.close(self.lock())
        except OSError:
            return True
        return False

    def start_making(self) -> None:
        """Make the archive in a process of its own, which outlives this one."""
        if not sys.executable or self._is_being_made():
            return
        if _age(self.failure) < _RETRY_SECONDS:
            # The maker may have been killed, and the next one comes tomorrow.
            self.remove_left()
            return
        _log.debug("the class-data archive %s is made in the background", self.path)
        with suppress(OSError):
            process = subprocess.Popen(
                own_program("trueup.engine.archive_maker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(json.dumps(asdict(self)).encode())


def remove_parts(folder: Path) -> None:
    """Remove old parts of archives: the Java of a killed maker may write one after another maker has ended."""
    for left in folder.glob(f"*{PART}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _PART_SECONDS:
                left.unlink()


def archive_for(java: JavaHome, settings: Mapping[str, str]) -> Archive | None:
    """Return the archive of this Java and these settings; None if the user chose another one, or without a folder."""
    given = [settings.get(name, "") for name in _OPTIONS]
    given += [os.environ.get(name, "") for name in _OPTION_VARIABLES]
    defaults = _spark_defaults()
    given.append(defaults)
    folder = cache_folder()
    # A colon separates two archives in the option of Java.
    if folder is None or ":" in str(folder) or not can_be_passed(folder):
        return None
    if any(_CHOSEN.search(options) for options in given):
        return None
    conf = {_CLASS_PATH: settings[_CLASS_PATH]} if settings.get(_CLASS_PATH) else {}
    if mattering := " ".join(_MATTERING.findall(" ".join(given))):
        conf[_OPTIONS[0]] = mattering
    java_key = _key_of_java(java.runtime)
    variables = [os.environ.get(name) for name in _VARIABLES]
    name = _digest([java_key, _key_of_spark(), sorted(conf.items()), variables, defaults])
    has_base = any(java.runtime.glob("lib/server/classes*.jsa"))
    base = "" if has_base else str(folder / f"java-{_digest([java_key])}.jsa")
    return Archive(str(folder / f"spark-{name}.jsa"), base, str(java.runtime), conf)


def _key_of_java(home: Path) -> list[object]:
    """Return what identifies a build of Java: its path, its version, its library."""
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        release = ""
    return [str(home), release, _size_and_time(home / "lib" / "server" / "libjvm.so")]


def _key_of_spark() -> list[object]:
    from pyspark import __version__
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home()) / "jars"
    names = sorted(entry.name for entry in os.scandir(jars)) if jars.is_dir() else []
    return [__version__, str(jars), [(name, _size_and_time(jars / name)) for name in names]]


def _spark_defaults() -> str:
    """Return the default settings of this Spark, which may have a class path and options of Java."""
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    try:
        return (Path(folder) / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return ""


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _is_own(path: Path) -> bool:
    """Whether a file is complete, belongs to this user, and cannot be read or written by others."""
    try:
        state = path.lstat()
        size = json.loads(_record(path).read_bytes())["size"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    private = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077
    return private and state.st_nlink == 1 and state.st_size == size


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float("inf")


def _quoted(path: str) -> str:
    """Quote a path for the option string of Spark, which knows quotes and backslashes as a shell does."""
    return shlex.quote(path)
