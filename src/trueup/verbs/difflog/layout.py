"""Which files of the state table a run writes: only its changed states, or all states of the files with its keys.

Keys that are spread over the whole table are in all of its files. To write all states again costs as much as the table
has, though few of them have changed. So a run that changes few states writes them into files of changes, one per
bucket, which replace earlier ones; once they have many states, they are merged into the other files of their buckets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trueup.verbs.difflog.state import BROADCAST_ROWS, DataFile

# Files with fewer states are always written again.
SMALL = 100_000
# Files of changes have at most one state per SHARE states of the table.
SHARE = 8


@dataclass(frozen=True)
class Layout:
    """The files that a run replaces, and whether it writes changes only.

    Otherwise `merged` are the files of changes among them: other files that contain one of their keys must be replaced
    too.
    """

    replaced: tuple[DataFile, ...]
    changes_only: bool = False
    merged: tuple[DataFile, ...] = ()


def choose_layout(
    every: Sequence[DataFile], with_keys: Collection[str], buckets: Collection[int], changed: int
) -> Layout:
    """Return the layout for a run; `with_keys` are the files that may contain one of its keys, `changed` their number.

    The choice depends on nothing else: a run that continues after a kill chooses the same.
    """
    plain = [file for file in every if not file.has_changes]
    hit = [file for file in plain if file.path in with_keys]
    changes = [file for file in every if file.has_changes]
    earlier = tuple(file for file in changes if file.bucket in buckets)
    fits_files = SHARE * (changed + _rows(earlier)) <= _rows(hit)
    fits_table = SHARE * (changed + _rows(changes)) <= _rows(plain)
    if _rows(hit) >= SMALL and fits_files and fits_table:
        return Layout(earlier, changes_only=True)
    return Layout((*hit, *earlier), merged=earlier)


def is_few(changed: int, files: Sequence[DataFile]) -> bool:
    """Return whether rows are few compared with the states in these files, and few enough for every executor."""
    return changed <= BROADCAST_ROWS and _rows(files) >= SMALL and SHARE * changed <= _rows(files)


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)
