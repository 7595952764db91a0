"""No lock of trueup can be taken by a role without privileges on its tables."""

from __future__ import annotations

from pathlib import Path

import trueup


def test_no_advisory_locks() -> None:
    """Every role that can connect can take an advisory lock, also one that others wait for."""
    package = Path(trueup.__file__).parent
    files = [path for pattern in ("*.py", "*.sql") for path in package.rglob(pattern)]
    assert files
    assert [path.name for path in files if "_advisory_" in path.read_text(encoding="utf-8")] == []
