"""Chains of syncs: which databases the rows of each table come from, so that changes cannot go round in a ring.

Each sync records on its target, per table, its source and what the source knows about its own sources. Running syncs
repeat that every few seconds, so that the news of a sync that closes a ring reaches all members of the ring.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg.types.json import Jsonb

from trueup.db.connection import Connection, one_value
from trueup.errors import CheckFailed
from trueup.verbs.sync import state

# Table -> the identities of the databases that its rows come from.
Origins = dict[str, list[str]]


def origins(source: Connection, target: Connection, sync_id: str, names: Iterable[str], node: str) -> Origins:
    """Return where the rows of these tables come from; raise if one of these databases is the target.

    The way back of the sync itself does not count: it never writes at the same time.
    """
    known: dict[str, list[str]] = {}
    if one_value(source.execute(state.statement("may_read"))):
        known = dict(source.execute(state.statement("origins"), {"id": sync_id}).fetchall())
    here, there = state.identity(source), state.identity(target)
    names = list(names)
    rings = [name for name in names if there in known.get(name, ())]
    if rings:
        raise CheckFailed(
            [f"{name}: the source gets its rows from this target: changes would go round for ever" for name in rings],
            cure="drop one of the syncs of this ring, or exclude the table from it: --exclude-tables",
            node=node,
        )
    return {name: sorted({here, *known.get(name, ())}) for name in names}


def record(target: Connection, name: str, epoch: int, found: Origins) -> None:
    """Record on the target where its rows come from."""
    with state.writing(target, name, epoch):
        target.execute(state.statement("set_origins"), {"sync": name, "origins": Jsonb(found)})
