"""The class-data archive of the JVMs that tests start, which `make test` makes before the tests.

It is kept in the virtual environment for the next run. Without it, tests need more time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trueup.engine.archive import Archive, archive_for
from trueup.engine.archive_maker import make
from trueup.engine.java import find_java
from trueup.errors import EngineError


def use_test_cache() -> None:
    """Let this process and its children keep archives in the virtual environment."""
    if os.access(sys.prefix, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(Path(sys.prefix) / "test-cache")


def archive_options() -> str:
    """Return the options of Java that use the archive; '' if there is none."""
    archive = archive_for(find_java(), {})
    return archive.options() if archive is not None and archive.is_ready() else ""


def start_archive() -> None:
    """Make the archive in the background if there is none; the process outlives a short run."""
    try:
        java = find_java()
    except EngineError:
        return
    archive = archive_for(java, {})
    if archive is not None and not archive.is_ready():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_HOME", str(java))
            archive.start_making()


def run_archive() -> Archive:
    """Return the archive of this run, which is made if there is none."""
    java = find_java()
    archive = archive_for(java, {})
    assert archive is not None, "no folder for an archive"
    if not archive.is_ready():
        os.environ["JAVA_HOME"] = str(java)
        make(archive)
    return archive


if __name__ == "__main__":
    use_test_cache()
    run_archive()
