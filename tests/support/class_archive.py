"""The class-data archive of the JVMs that tests start, which `make test` makes before the tests.

It is kept in the virtual environment for the next run. Without it, tests need more time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trueup.engine.archive import Archive, archive_for
from trueup.engine.archive_maker import make
from trueup.engine.java import find_java


def use_test_cache() -> None:
    """Let this process and its children keep archives in the virtual environment."""
    if os.access(sys.prefix, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(Path(sys.prefix) / "test-cache")


def archive_options() -> str:
    """Return the options of Java that use the archive; '' if there is none."""
    archive = archive_for(find_java(), {})
    return archive.options() if archive is not None and archive.is_ready() else ""


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
