"""A start of the Java process of Spark: another thread can end it, and one that hangs is ended."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueup.engine.jvm import ending_of, signal_all
from trueup.errors import EngineError

_LOOK_SECONDS = 1.0


class _Java(subprocess.Popen[bytes]):
    """A Java process; PySpark would wait for ever for one that has ended with exit code 0."""

    def poll(self) -> int | None:
        """Return a number other than 0 if the process has ended; `wait` returns the exit code."""
        code = super().poll()
        return 1 if code == 0 else code


class _Tempfile:
    """The module `tempfile`, with another folder: PySpark's is left behind if this process is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mkdtemp(self) -> str:
        """Create a folder."""
        return tempfile.mkdtemp(dir=self._folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(tempfile, name)


class Launch:
    """A start of Java on this machine, which another thread can end."""

    def __init__(self) -> None:
        self.is_over = False
        # What was started last, and the Java process of Spark.
        self._process: subprocess.Popen[bytes] | None = None
        self._java: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def end(self) -> None:
        """Let Java end, which removes its temporary folders, and do not start it again."""
        with self._lock:
            self.is_over = True
            if self._process is not None and self._process.poll() is None:
                signal_all(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """Kill a Java process that did not end, and its Python workers."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                signal_all(self._process, signal.SIGKILL)

    def why_ended(self) -> str:
        """Return how the Java process has ended, as `jvm.why_ended`, also before it has responded."""
        process = self._java
        return ending_of(process) if process is not None and process.poll() is not None else ""

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Kill a Java process that has not started Spark after this time (0: no limit), and raise EngineError."""
        is_done, is_late = threading.Event(), threading.Event()

        def watch() -> None:
            look = min(_LOOK_SECONDS, seconds / 10)
            looks = 10 if look < _LOOK_SECONDS else round(seconds)
            # Not by the clock: while this process is stopped (Ctrl-Z), so is Java.
            if any(is_done.wait(look) for _ in range(looks)):
                return
            is_late.set()
            self.is_over = True
            self.kill()

        if seconds:
            threading.Thread(target=watch, name="trueup-start", daemon=True).start()
        try:
            yield
        except Exception as error:
            if not is_late.is_set():
                raise
            raise EngineError(
                f"Spark did not start within {seconds:,.0f} s, and its Java process was ended",
                cure="check whether the machine has too little memory, and JAVA_HOME; raise stall_seconds in [spark] if"
                " a start takes that long, or use --engine local",
            ) from error
        finally:
            is_done.set()

    @contextmanager
    def recorded(self, folder: Path) -> Iterator[None]:
        """Keep the process that PySpark starts in the block: its function returns it only when Java responds.

        Its temporary files are written to the folder.
        """
        from pyspark import java_gateway

        names = vars(java_gateway)
        changed = {"Popen": self._popen_java, "tempfile": _Tempfile(folder)}
        before = {name: names[name] for name in changed}
        names.update(changed)
        try:
            yield
        finally:
            names.update(before)

    def popen(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that another thread can end."""
        with self._lock:
            if self.is_over:
                raise EngineError("the start of Spark was ended")
            self._process = _Java(*arguments, **options)
            return self._process

    def _popen_java(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        self._java = self.popen(*arguments, **options)
        return self._java
