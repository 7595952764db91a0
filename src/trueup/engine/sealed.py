"""What Python workers get: on this machine, Spark sends the path of a private file, and the file has the contents.

Addresses have passwords, and Spark serves what it sends (broadcasts, functions) from its own ports and folders. On
a cluster there is no such file: its settings protect the contents (docs/clusters.md).
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trueup.engine.scratch import ScratchFolder

# No pickle and no compressed text starts with it.
_FILE = b"file:"
_PREFIX = "trueup-sent-"

_folder: ScratchFolder | None = None
_lock = threading.Lock()


def is_here(master: str, remote: str = "") -> bool:
    """Whether the Python workers run on this machine."""
    return not remote and (not master or re.match(r"local(\[|$)", master) is not None)


def sealed(contents: bytes) -> bytes:
    """Return what Spark sends: the path of a new file with the contents, or the contents if workers are elsewhere.

    The file is removed by `remove`, and at the end of this process.
    """
    folder = _folder_of_workers()
    if folder is None:
        return contents
    path = folder / secrets.token_hex(8)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(contents)
    return _FILE + os.fsencode(path)


def unsealed(sent: bytes) -> bytes:
    """Return the contents, in a worker."""
    return Path(os.fsdecode(sent[len(_FILE) :])).read_bytes() if sent.startswith(_FILE) else sent


def remove(sent: bytes) -> None:
    """Remove the file, if there is one: no worker will read it any more."""
    if sent.startswith(_FILE):
        Path(os.fsdecode(sent[len(_FILE) :])).unlink(missing_ok=True)


@contextmanager
def sealed_meanwhile(contents: bytes) -> Iterator[bytes]:
    """Yield what Spark sends in the block."""
    sent = sealed(contents)
    try:
        yield sent
    finally:
        remove(sent)


def _folder_of_workers() -> Path | None:
    """Return the folder of the files; None if the workers are not on this machine, or there is no Spark."""
    global _folder
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or not is_here(str(context.master)):
        return None
    with _lock:
        if _folder is None or not _folder.path.is_dir():
            from trueup.engine.cache import cache_folder

            # Not a temporary folder: these are emptied after some days, and Spark may run for weeks.
            _folder = ScratchFolder(_PREFIX, cache_folder())
            atexit.register(_folder.close)
        return _folder.path
