"""Keys whose order has nothing to do with where rows lie, such as random uuids: one scan in the order of the pages.

A range of such keys is spread over the whole table, and whoever reads one range after the other reads most pages many
times. Since digests add up, each node is scanned once, part by part in the order of its pages, and every row is counted
to its unit on the way; the parts of a unit are added up in the driver. Only within a snapshot do rows stay on their
pages, and the sums of two snapshots do not mix: such a run cannot be taken up again, it starts over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db import catalog
from trueup.db.snapshot import Control
from trueup.engine.work import Room
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.encode import row_hash
from trueup.rows.keys import Block, KeyValues, chain, literals, ordered, source, where
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of
from trueup.task.compare.model import NOWHERE, Ranges
from trueup.task.job import Job
from trueup.verbs.diff.work import CompareUnit, HashBlock

if TYPE_CHECKING:
    from psycopg import sql

# Pages of one part: 64 MB of table.
_PAGES_A_PART = 8192
# Below this many pages the table is read into memory once, whatever the order.
_FEWEST_PAGES = 2 * _PAGES_A_PART
# The planner's correlation of key and place: 1 in order, 0 at random.
_SCATTERED = 0.3
_WHOLE = Block(None, None)


@dataclass(frozen=True)
class ScanPages:
    """Digest the units of one part of a node's table: pages from `first` up to `end` (None: to the last)."""

    node: str
    first: int
    end: int | None
    cuts: tuple[KeyValues, ...]
    block: Block = _WHOLE
    origin: int = NOWHERE


@dataclass(frozen=True)
class PagesScanned:
    """The digests of one part by the number of the unit."""

    node: str
    units: Mapping[int, Digest]


def is_scattered(controls: Sequence[Control], spec: TableSpec) -> bool:
    """Whether a scan by pages is the better way: a large table whose key says nothing of where its rows lie."""
    if len(spec.key) != 1 or spec.key[0].order != "type" or not type_of(spec.key[0].column).page_scan:
        return False
    name = spec.key[0].column.name
    return any(
        page_count(control.connection, spec) >= _FEWEST_PAGES
        and (found := catalog.correlation(control.connection, spec.schema, spec.table, name)) is not None
        and abs(found) < _SCATTERED
        for control in controls
    )


def all_cuts(ranges: Ranges) -> tuple[KeyValues, ...]:
    """The boundaries of all units of all blocks, in order."""
    cuts: list[KeyValues] = []
    for number, block in enumerate(ranges.blocks):
        if block.start is not None:
            cuts.append(block.start)
        cuts += ranges.inside(number)
    return tuple(cuts)


def page_tasks(controls: Sequence[Control], spec: TableSpec, cuts: tuple[KeyValues, ...]) -> list[ScanPages]:
    """Parts of all nodes in turn, so that all of them are busy."""
    parts: list[list[ScanPages]] = []
    for control in controls:
        firsts = list(range(0, page_count(control.connection, spec), _PAGES_A_PART)) or [0]
        ends = [*firsts[1:], None]
        parts.append([ScanPages(control.node.name, *edges, cuts) for edges in zip(firsts, ends, strict=True)])
    longest = max(len(mine) for mine in parts)
    return [mine[at] for at in range(longest) for mine in parts if at < len(mine)]


def scan_pages(job: Job, task: ScanPages, room: Room) -> Iterator[PagesScanned]:
    """One part of one node: count and sum of the hashes, by unit."""
    query = sql.SQL("SELECT {unit}, count(*), sum({hash})::text FROM {source}{where} GROUP BY 1").format(
        unit=_unit(job.spec, task.cuts),
        hash=row_hash(job.spec),
        source=source(job.spec),
        where=where(job.spec, *on_pages(task.first, task.end)),
    )

    def ask(reader: Any) -> list[tuple[Any, ...]]:
        # The planner does not know how few units there are, and would sort all rows by them.
        reader.rows(sql.SQL("SELECT set_config('enable_sort', 'off', true)").format())
        found: list[tuple[Any, ...]] = reader.rows(query)
        return found

    rows = job.read((task.node,), ask)[task.node]
    yield PagesScanned(task.node, {unit: Digest(count, int(total)) for unit, count, total in rows})


def _unit(spec: TableSpec, cuts: Sequence[KeyValues]) -> sql.Composed:
    """The number of a row's unit: how many boundaries are at or before its key."""
    listed = sql.SQL(", ").join(literals(spec.key, cut)[0] for cut in cuts)
    return sql.SQL("width_bucket({}, ARRAY[{}]::{}[])").format(
        ordered(spec.key[0]), listed, sql.SQL(spec.key[0].column.type)
    )


def differing_units(
    sums: Mapping[str, Mapping[int, Digest]], cuts: Sequence[KeyValues]
) -> list[tuple[Block, dict[str, int]]]:
    """The units in which the nodes disagree, with their counts."""
    found = []
    for number, block in enumerate(chain(cuts)):
        here = {node: side.get(number, EMPTY) for node, side in sums.items()}
        if len(set(here.values())) > 1:
            found.append((block, {node: digest.count for node, digest in here.items()}))
    return found


def unit_tasks(
    job: Job, units: Sequence[tuple[Block, Mapping[str, int]]], nodes: tuple[str, ...]
) -> Iterator[CompareUnit | HashBlock]:
    """What is to be done with units that differ: a small one is compared, a large one is taken apart first."""
    for number, (block, counts) in enumerate(units):
        if max(counts.values()) <= job.unit:
            yield CompareUnit(block, nodes, origin=origin_of(number))
        else:
            yield HashBlock(block, nodes, counted=True, origin=origin_of(number))


def origin_of(number: int) -> int:
    """What a unit that differs is called in its answers: none of the blocks that a run can be taken up from."""
    return -2 - number
