"""Cut a table into blocks, and compute their digests on all nodes at the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from trueup.config.address import POSTGRESQL
from trueup.nodes.base import ComparedNode, HashBlocks, KeyBlocks, NodeTable, Plan
from trueup.nodes.block_digests import BlockDigests, all_numbers, differing, most_rows
from trueup.nodes.columnar import ColumnarNode
from trueup.nodes.postgres import PostgresNode
from trueup.nodes.probe import without_wrong, wrong_classes
from trueup.rows.keys import Block
from trueup.rows.spec import ValueClass
from trueup.task.compare.state import State
from trueup.task.together import together

# For a table of unknown size.
_BITS = 12
_MOST_BITS = 14
# Without Spark, blocks are small: few rows are read again if some differ, and their digests are kept in arrays.
_SMALL = 8
_MOST_BLOCKS = 1_500_000
_SMALL_KINDS = (POSTGRESQL, "parquet", "delta")
# The short hash is an expression as deep as there are columns: more than this exceeds the smallest `max_stack_depth`.
_MOST_COLUMNS = 80
_DATABASES = (POSTGRESQL, "mysql", "clickhouse", "chdb")
Digests = Mapping[str, BlockDigests]


def with_blocks(
    plan: Plan, nodes: Sequence[ComparedNode], tables: Mapping[str, NodeTable], unit: int, *, is_local: bool
) -> Plan:
    """Return the plan with blocks by ranges of the key, if a node has one whose values are spread evenly."""
    known = [table.rows for table in tables.values() if table.rows is not None]
    if is_local and all(node.kind in _SMALL_KINDS for node in nodes):
        unit = min(unit, max(_SMALL, -(-max(known, default=0) // _MOST_BLOCKS)))
    for node in nodes:
        if isinstance(node, PostgresNode) and _has_ranges(plan, nodes) and (blocks := node.key_blocks(plan, unit)):
            return replace(plan, blocks=blocks)
    bits = math.ceil(math.log2(max(1.0, max(known) / unit))) if known else _BITS
    # Empty tables have estimates too: blocks by hash cost nothing, so there are some always.
    return replace(plan, blocks=HashBlocks(min(_MOST_BITS, max(4, bits))))


def with_hash(plan: Plan, nodes: Sequence[ComparedNode]) -> Plan:
    """Return the plan with the faster hash, if all nodes have it."""
    is_short = len(plan.columns) <= _MOST_COLUMNS and all(
        node.has_short_hash(plan) if isinstance(node, PostgresNode) else isinstance(node, ColumnarNode)
        for node in nodes
    )
    return replace(plan, is_short=is_short)


def _has_ranges(plan: Plan, nodes: Sequence[ComparedNode]) -> bool:
    """Return whether the order of the first key column is the same on all nodes, and all have numbers of its values."""
    first = plan.columns[0]
    if first.kind == "int":
        return True
    # A decimal of a database may be an integer elsewhere; Arrow has no exact numbers of both.
    mixed = first.kind == "decimal" and all(node.kind in _DATABASES for node in nodes)
    kinds = (first.kind, "int") if mixed else (first.kind,)
    return all(first.on[node.name].kind in kinds for node in nodes)


def all_digests(nodes: Sequence[ComparedNode], plan: Plan) -> tuple[Plan, tuple[str, ...], Digests]:
    """Return the digests of all blocks on all nodes; after an error or Ctrl-C, the queries of the others end.

    Each node is probed before its first block. If one computes a class in another way, the digests are computed again
    by a plan that compares it as text, which is returned with the remarks on it.
    """

    def stop() -> None:
        for node in nodes:
            node.stop()

    remarks: tuple[str, ...] = ()
    while True:
        answers = together(nodes, partial(_digests, plan), cancel=stop)
        wrong = {node.name: kinds for node, (kinds, _) in zip(nodes, answers, strict=True) if kinds}
        if not wrong:
            return plan, remarks, {node.name: found for node, (_, found) in zip(nodes, answers, strict=True)}
        plan, remarks = without_wrong(plan, wrong)


def _digests(plan: Plan, node: ComparedNode) -> tuple[Sequence[ValueClass], BlockDigests]:
    """Return the classes that the node computes in another way or, without any, its digests."""
    wrong = wrong_classes(node, plan)
    return wrong, BlockDigests.of(()) if wrong else node.digests(plan)


def differing_blocks(digests: Digests, plan: Plan, state: State) -> dict[int, int]:
    """Return the blocks whose digests differ, and their rows on all nodes together; count rows and blocks."""
    sides = list(digests.values())
    numbers = all_numbers(sides)
    state.blocks += len(numbers)
    state.rows.update({node: side.rows for node, side in digests.items()})
    # With blocks by hash, a block has other rows on each node: the largest count per block is not a number of rows.
    by_key = isinstance(plan.blocks, KeyBlocks)
    state.rows_checked += most_rows(sides, numbers) if by_key else max(state.rows.values(), default=0)
    found = dict(differing(sides))
    for number in found:
        state.differs(number, [_block(plan, number)])
    return found


def _block(plan: Plan, number: int) -> Block:
    if not isinstance(plan.blocks, KeyBlocks):
        return Block(None, None)
    start, end = plan.blocks.texts_of(number, number)
    return Block(None if start is None else (start,), None if end is None else (end,))
