"""Where to cut: block boundaries from the planner's estimates and a sample, never from a full count.

A wrong estimate costs balance only: the chain of blocks covers every row of every node in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import sql

from trueup.db import catalog
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.errors import QueryError
from trueup.rows.cuts import first_keys, sampling
from trueup.rows.keys import Block, KeyValues, chain, source, where
from trueup.rows.marks import is_whole_number, largest
from trueup.rows.spec import TableSpec
from trueup.task.compare.model import Ranges
from trueup.task.together import together

# The units of a block are hashed in one statement. Measured: ten of them cost nothing, thirty a third of the time.
_MOST_UNITS = 10


def plan_ranges(controls: Sequence[Control], spec: TableSpec, block_size: int, unit: int) -> Ranges:
    """Blocks of about `block_size` rows in units of about `unit`, cut on the node that seems to have the most."""
    estimates = dict(together(controls, lambda control: (control.node.name, _rows_on(control, spec))))
    by_size = sorted(controls, key=lambda control: estimates[control.node.name], reverse=True)
    if spec.is_keyless:
        return Ranges((Block(None, None),), by_size[0].node.name, estimates, "")
    for control in by_size:
        rows = estimates[control.node.name]
        blocks = max(1, math.ceil(rows / block_size))
        units = max(1, min(_MOST_UNITS, round(min(block_size, rows) / unit)))
        sampled = 1 if is_whole_number(spec) else units
        sample = sampling(control.connection, spec, rows, blocks * sampled)
        cuts = _cuts(control, spec, blocks * sampled, sample)
        if cuts:
            outer = cuts[::sampled]
            # The first block has nothing inside: it ends at the first key.
            if is_whole_number(spec):
                inner = ((), *evenly(outer, units, largest(spec)))
            else:
                inner = ((), *(tuple(cuts[at + 1 : at + sampled]) for at in range(0, len(cuts), sampled)))
            return Ranges(tuple(chain(outer)), control.node.name, estimates, sample, inner)
        # Statistics lied: the anchor is empty. The next one may not be.
    return Ranges((Block(None, None),), by_size[0].node.name, estimates, "")


def evenly(cuts: Sequence[KeyValues], units: int, most: int) -> Iterator[tuple[KeyValues, ...]]:
    """Whole numbers that cut each block into parts of one width; the last block, without an end, as the one before.

    A sample of pages holds neighbours, and so says little of what lies between two blocks' first keys.
    """
    firsts = [int(cut[0]) for cut in cuts]
    width = 0
    for at, first in enumerate(firsts):
        width = (firsts[at + 1] - first if at + 1 < len(firsts) else width) // units
        inside = [first + width * number for number in range(1, units)] if width else []
        # A cut that is no number of the type could not be written.
        yield tuple((str(key),) for key in inside if key <= most)
        width *= units


def _rows_on(control: Control, spec: TableSpec) -> int:
    """The planner's estimate or, behind a filter, whose effect no planner knows, a count."""
    try:
        if not spec.filter:
            return catalog.estimate_rows(control.connection, source(spec))
        query = sql.SQL("SELECT count(*) FROM {}{}").format(source(spec), where(spec))
        row: Any = control.connection.execute(query, binary=True).fetchone()
        return int(row[0])
    except Exception as error:
        found = error_from_server(error, control.node)
        if spec.filter and isinstance(found, QueryError) and not found.cure:
            found.message = f"--filter: {found.message}"
            found.cure = "change the filter: it must give true or false for every row, and may only read"
        raise found from None


def _cuts(control: Control, spec: TableSpec, blocks: int, sample: str) -> list[KeyValues]:
    try:
        return first_keys(control.connection, spec, blocks, sample)
    except Exception as error:
        raise error_from_server(error, control.node) from None
