"""The rolling sweep: compares the tables block by block, so that rows which never change are checked too.

The differing keys of a block become pending and are checked like changed keys, so a row in flight is not an error here
either. A truncated table is swept in the same way, because the log does not say which rows were removed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from trueup.config.model import Node
from trueup.db.reader import borrow
from trueup.errors import TrueupError
from trueup.rows.align import differing_keys
from trueup.rows.digest import boundaries, digest
from trueup.rows.fetch import hashes_in_block
from trueup.rows.keys import Block, KeyValues
from trueup.verbs.validate import pending, row_errors
from trueup.verbs.validate.checks import Checker, with_table
from trueup.verbs.validate.pending import SWEEP, Entry, Touch
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.tables import Tables

_RETRIES = 2
# The share of the time for sweeping a table that was added or restarted, if the validation has no --sweep.
_REQUESTED_SHARE = 0.2


@dataclass(frozen=True)
class Swept:
    """One block: its number of rows, the differing keys, and the start of the next block (None: end of the table)."""

    rows: int
    differing: tuple[KeyValues, ...]
    next: KeyValues | None


class Sweeper:
    """Sweeps one block at a time, for at most a share of the time."""

    def __init__(self, sessions: Sessions, tables: Tables, checker: Checker) -> None:
        self._sessions = sessions
        self._tables = tables
        self._checker = checker
        self._next_at = 0.0
        self._passes = 0

    def sweep(self, position: int) -> None:
        """Sweep the next block, unless the share of the time is used up. `position` is the position of reading."""
        share = self._sessions.settings.sweep
        names = sorted(self._tables.to_sweep & self._tables.pairs.keys())
        if not names and share > 0:
            names = sorted(self._tables.pairs)
        if not names or time.monotonic() < self._next_at:
            return
        share = share or _REQUESTED_SHARE
        start = time.monotonic()
        self._sweep_table(names[self._passes % len(names)], position)
        now = time.monotonic()
        self._next_at = now + (now - start) * (1 - share) / share

    def _sweep_table(self, name: str, position: int) -> None:
        meta, validation = self._sessions.meta, self._sessions.name
        row = next(row for row in meta.rows("tables", name=validation) if row["source"] == name)
        # The time of a pass is the start of its first block: rows of a block may change as soon as it is read.
        started_at = meta.value("clock")
        swept = self._block(name, tuple(row["sweep_key"]) if row["sweep_key"] else None)
        with meta.transaction():
            # No settings are changed meanwhile: a block that was compared with weaker ones does not count.
            meta.rows("lock_row", name=validation)
            if meta.need(validation).settings.is_stricter(self._sessions.settings):
                return
            suspected = self._suspect(name, swept.differing, Touch(SWEEP, position, position, 0, None))
            meta.rows(
                "sweep", name=validation, source=name, key=list(swept.next) if swept.next else None, rows=swept.rows,
                passes=0 if swept.next else 1, now=started_at,
            )  # fmt: skip
            if swept.next is None:
                meta.rows("gap_closed", name=validation)
                # Open errors are checked in every round, ignored ones once per pass.
                self._checker.check_ignored(name)
        if swept.next is None:
            self._passes += 1
            self._tables.to_sweep.discard(name)
        self._checker.pending += suspected

    def sweep_truncated(self, entry: Entry) -> None:
        """Sweep a truncated table: its differing keys become pending, and the truncation is decided."""
        start: KeyValues | None = None
        while entry.source in self._tables.pairs:
            swept = self._block(entry.source, start)
            self._suspect(entry.source, swept.differing, entry.as_touch("delete"))
            start = swept.next
            if start is None:
                break
        pending.drop(self._sessions.meta, self._sessions.name, [entry.place])

    def _suspect(self, name: str, keys: tuple[KeyValues, ...], touch: Touch) -> int:
        """Make differing keys pending, unless they are pending or errors; return the number of new ones.

        A row that is listed as an error is decided: it would hold back fences and a cut-over on each pass. A row that
        is pending because of later changes holds back the position of `touch` from now on.
        """
        if not keys:
            return 0
        meta, validation = self._sessions.meta, self._sessions.name
        entries = pending.known(meta, validation, [(name, key) for key in keys])
        known = {key for _, key in entries} | row_errors.known(meta, validation, name, keys)
        suspected = [Entry.of(name, key, touch) for key in keys if key not in known]
        self._checker.postpone(suspected, 0)
        later = [entry for entry in entries.values() if entry.first_lsn > touch.first_lsn]
        self._checker.postpone([replace(entry, first_lsn=touch.first_lsn) for entry in later], 0)
        return len(suspected)

    def _block(self, name: str, start: KeyValues | None) -> Swept:
        settings = self._sessions.settings
        try:
            return sweep_block(
                self._tables.pairs[name], self._sessions.servers, start, rows=settings.sweep_rows,
                application=self._sessions.application, timeout=settings.timeout,
            )  # fmt: skip
        except TrueupError as error:
            raise with_table(error, name) from None


def sweep_block(
    pair: Pair, nodes: tuple[Node, Node], start: KeyValues | None, *, rows: int, application: str, timeout: float
) -> Swept:
    """Compare the block of about `rows` rows that starts at a key."""
    with (
        borrow(nodes[1], None, application=application, retries=_RETRIES) as target,
        borrow(nodes[0], None, application=application, retries=_RETRIES) as source,
    ):
        edges = boundaries(source, pair.source, Block(start, None), step=rows, steps=1, timeout=timeout)
        # Behind the last row of the source, the target may have many rows: they are split by the keys of the target.
        if not edges:
            edges = boundaries(target, pair.target, Block(start, None), step=rows, steps=1, timeout=timeout)
        end = edges[0] if edges and edges[0] != start else None
        block = Block(start, end)
        # The target is read before the source: see `judge`.
        target_digest = digest(target, pair.target, block, timeout=timeout)
        source_digest = digest(source, pair.source, block, timeout=timeout)
        if source_digest == target_digest:
            return Swept(source_digest.count, (), end)
        hashes = {
            "target": hashes_in_block(target, pair.target, block, timeout=timeout),
            "source": hashes_in_block(source, pair.source, block, timeout=timeout),
        }
        return Swept(source_digest.count, tuple(differing_keys(hashes)), end)
