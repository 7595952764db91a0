"""What a sink reports once, and its copies not at all: each thread and each task has a copy."""

from __future__ import annotations

from typing import Any


class Once:
    """True at the first call with a name; never in a copy, which has been pickled."""

    def __init__(self) -> None:
        self._is_copy = False
        self._names: set[str] = set()

    def __call__(self, name: str = "") -> bool:
        """Return whether this is the first call with this name, and not in a copy."""
        is_first = not self._is_copy and name not in self._names
        self._names.add(name)
        return is_first

    def __getstate__(self) -> dict[str, Any]:
        return {"_is_copy": True, "_names": set()}
