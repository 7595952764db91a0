"""Python looks for rings of objects after every few hundred new ones. A run makes millions of them, and no rings."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 1_000_000

_lock = threading.Lock()
_before = gc.get_threshold()
_inside = 0


@contextmanager
def many_objects() -> Iterator[None]:
    """The block makes many objects: rings among them are looked for rarely, which spares a tenth of the time."""
    global _before, _inside
    with _lock:
        if not _inside:
            _before = gc.get_threshold()
            # Whoever has switched it off is left alone.
            if _before[0]:
                gc.set_threshold(max(_before[0], _NEW_OBJECTS), *_before[1:])
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                gc.set_threshold(*_before)
