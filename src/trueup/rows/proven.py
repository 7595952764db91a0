"""Blocks that need not be read: a certificate proves them, and no captured change has touched them since.

The rows of such a block were equal on both nodes when it was hashed, and every change of either node since then was
captured, up to the snapshots of the run. So they are equal in the snapshots, too. The other way round, what a run has
found equal can be recorded as a certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trueup.db.server_identity import ServerPosition
from trueup.rows.digest import Digest
from trueup.rows.keys import Block
from trueup.rows.spec import TableSpec


@dataclass(frozen=True)
class ProvenTable:
    """What a certificate leaves to read: the touched blocks, in key order; the others are proven.

    With a `reason`, nothing is taken from the certificate, and all rows are read.
    """

    validation: str
    touched: tuple[Block, ...] = ()
    touched_rows: int = 0
    proven_blocks: int = 0
    proven_rows: int = 0
    # When the pass that made the certificate began, and when the oldest of the proven blocks was hashed.
    proven_at: str = ""
    oldest_at: str = ""
    reason: str = ""
    # Per node, the position up to which all changes are judged: at or after that of the snapshot.
    positions: Mapping[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Return the share of the rows that is read."""
        return self.touched_rows / max(1, self.touched_rows + self.proven_rows)

    def as_json(self) -> dict[str, Any]:
        """Return what a report says about it."""
        return {
            "validation": self.validation,
            "proven_blocks": self.proven_blocks,
            "proven_rows": self.proven_rows,
            "proven_at": self.proven_at,
            "oldest_block_at": self.oldest_at,
            "positions": dict(self.positions),
            "blocks_now": len(self.touched),
            "reason": self.reason,
        }


class Prover(Protocol):
    """Says which blocks of a table are proven. It was asked for its certificates before the snapshots were taken."""

    def proven(self, spec: TableSpec, tables: Mapping[str, tuple[str, int]]) -> ProvenTable:
        """Return what is proven of a table; called while the snapshots are held.

        `tables` has per node the system (with the database) and the OID of the table that is compared.
        """
        ...


@dataclass(frozen=True)
class ComparedTable:
    """A table of which a run has compared all rows, with the verdict MATCH."""

    spec: TableSpec
    # Per node the server at the time of the snapshot, and the OID of the table.
    tables: Mapping[str, tuple[ServerPosition, int]]
    # In key order, from the open start to the open end. None: the rows were not equal when they were hashed first.
    ranges: tuple[tuple[Block, Digest | None], ...]
    how: Literal["diff", "check"]


class Certifying(Protocol):
    """The table of a validation while a run compares its rows: changes since it began are judged apart."""

    @property
    def validation(self) -> str:
        """The name of the validation."""
        ...

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the validation has of the table, in key order; none: the table is not validated."""
        ...

    def record(self, compared: ComparedTable) -> str:
        """Record the certificate of the table; return why that was not possible ("" if it was)."""
        ...


class Certifier(Protocol):
    """Records certificates of tables."""

    def begin(self, spec: TableSpec, plan: Sequence[Block]) -> Certifying:
        """Begin with a table, before the snapshots are taken; `plan` are its blocks if the validation has none yet."""
        ...
