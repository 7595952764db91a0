"""Plan the blocks of a table, from the planner's estimates and a sample of keys, without counting all rows.

A wrong estimate makes blocks of uneven size. The blocks always cover all rows of all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from psycopg import sql

from trueup.config.settings import DiffSettings
from trueup.db import catalog
from trueup.db.connection import one_value
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.errors import QueryError
from trueup.rows.cuts import first_keys, sampling
from trueup.rows.keys import Block, KeyValues, chain, source, where
from trueup.rows.marks import is_whole_number, largest
from trueup.rows.spec import TableSpec
from trueup.task.compare.model import Ranges
from trueup.task.steering import is_gentle
from trueup.task.together import together

# The units of a block are hashed in one statement. Measured: ten units cost nothing extra, thirty add a third.
_MOST_UNITS = 10


def plan_ranges(controls: Sequence[Control], spec: TableSpec, settings: DiffSettings) -> Ranges:
    """Return blocks of about `block_size` rows, cut into units, with keys of the node with the most estimated rows."""
    block_size = settings.block_size
    # A gentle run hashes a block in small steps instead of units.
    unit = block_size if is_gentle(settings) else settings.compare_unit_size
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
            # The first block ends at the first key, so it has no units.
            if is_whole_number(spec):
                inner = ((), *evenly(outer, units, largest(spec)))
            else:
                inner = ((), *(tuple(cuts[first + 1 : first + sampled]) for first in range(0, len(cuts), sampled)))
            return Ranges(tuple(chain(outer)), control.node.name, estimates, sample, inner)
        # The estimate was wrong and this node has no rows: try the next one.
    return Ranges((Block(None, None),), by_size[0].node.name, estimates, "")


def evenly(cuts: Sequence[KeyValues], units: int, largest_key: int) -> Iterator[tuple[KeyValues, ...]]:
    """Yield per block the integers that cut it into `units` ranges of equal width; the last block like the one before.

    A sample of pages contains neighbouring keys, so it does not show how keys are distributed inside of a block.
    """
    firsts = [int(cut[0]) for cut in cuts]
    width = 0
    for number, first in enumerate(firsts):
        width = (firsts[number + 1] - first if number + 1 < len(firsts) else width) // units
        inside = [first + width * unit for unit in range(1, units)] if width else []
        # A cut must be a value of the key's type.
        yield tuple((str(key),) for key in inside if key <= largest_key)
        width *= units


def _rows_on(control: Control, spec: TableSpec) -> int:
    """Return the planner's estimate or, with a filter, the number of rows."""
    try:
        if not spec.filter:
            return catalog.estimate_rows(control.connection, source(spec))
        query = sql.SQL("SELECT count(*) FROM {}{}").format(source(spec), where(spec))
        return int(one_value(control.connection.execute(query, binary=True)))
    except Exception as error:
        failure = error_from_server(error, control.node)
        if spec.filter and isinstance(failure, QueryError) and not failure.cure:
            failure.message = f"--filter: {failure.message}"
            failure.cure = "change the filter: it must be true or false for every row, and must not write"
        raise failure from None


def _cuts(control: Control, spec: TableSpec, blocks: int, sample: str) -> list[KeyValues]:
    try:
        return first_keys(control.connection, spec, blocks, sample)
    except Exception as error:
        raise error_from_server(error, control.node) from None
