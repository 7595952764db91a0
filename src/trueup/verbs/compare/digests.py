"""Cut a table into blocks, and compute their digests on all nodes at the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from trueup.nodes.base import EMPTY, CanonicalDigest, ComparedNode, HashBlocks, KeyBlocks, NodeTable, Plan
from trueup.nodes.postgres import PostgresNode
from trueup.nodes.probe import without_wrong, wrong_classes
from trueup.rows.keys import Block
from trueup.rows.spec import ValueClass
from trueup.task.compare.model import Hashed
from trueup.task.compare.state import State
from trueup.task.together import together

# For a table of unknown size.
_BITS = 12
_MOST_BITS = 14
Digests = Mapping[str, Mapping[int, CanonicalDigest]]


def with_blocks(plan: Plan, nodes: Sequence[ComparedNode], tables: Mapping[str, NodeTable], unit: int) -> Plan:
    """Return the plan with blocks by ranges of an integer key, if a node has one whose values are spread evenly."""
    for node in nodes:
        if isinstance(node, PostgresNode) and (blocks := node.key_blocks(plan, unit)):
            return replace(plan, blocks=blocks)
    known = [table.rows for table in tables.values() if table.rows is not None]
    bits = math.ceil(math.log2(max(1.0, max(known) / unit))) if known else _BITS
    # Empty tables have estimates too: blocks by hash cost nothing, so there are some always.
    return replace(plan, blocks=HashBlocks(min(_MOST_BITS, max(4, bits))))


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


def _digests(plan: Plan, node: ComparedNode) -> tuple[Sequence[ValueClass], Mapping[int, CanonicalDigest]]:
    """Return the classes that the node computes in another way or, without any, its digests."""
    wrong = wrong_classes(node, plan)
    return wrong, {} if wrong else node.digests(plan)


def differing_blocks(digests: Digests, plan: Plan, state: State) -> list[int]:
    """Return the blocks whose digests differ; count rows and blocks."""
    numbers = sorted({number for side in digests.values() for number in side})
    differing = []
    for number in numbers:
        sides = {node: side.get(number, EMPTY) for node, side in digests.items()}
        differs = len(set(sides.values())) > 1
        counts = {node: digest.count for node, digest in sides.items()}
        state.hashed(Hashed(_block(plan, number), counts, differs, origin=number))
        if differs:
            differing.append(number)
    if isinstance(plan.blocks, HashBlocks):
        # A block has other rows on each node: the largest count per block is not a number of rows.
        state.rows_checked = max(state.rows.values(), default=0)
    return differing


def _block(plan: Plan, number: int) -> Block:
    if not isinstance(plan.blocks, KeyBlocks):
        return Block(None, None)
    start, end = plan.blocks.range_of(number)
    return Block(None if start is None else (str(start),), None if end is None else (str(end),))
