"""What a certificate says: these tables were equal, block by block, at these positions of both nodes.

A certificate holds for the rows as they were when each block was hashed. Together with every captured change since
then, which a validation has judged, it proves the rows as they are now. When changes may have been missed, this is not
so any more: the certificate is void, with a reason, until all blocks were hashed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from trueup.db.server_identity import ServerPosition
from trueup.errors import TrueupError
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.keys import Block, KeyValues
from trueup.rows.spec import TableSpec

# What has proven the table: blocks hashed by a validation, or a run of `trueup diff` or `trueup check`.
How = Literal["scrub", "diff", "check"]


@dataclass(frozen=True)
class CertifiedTable:
    """A table of one node, and where the log of this node was: everything committed later is a captured change."""

    node: str
    table: str
    oid: int
    # Names and types of the compared columns, in the order in which they are hashed.
    columns: tuple[tuple[str, str], ...]
    server: ServerPosition

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "columns": [list(column) for column in self.columns]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CertifiedTable:
        """Return what `as_json` made."""
        columns = tuple((str(name), str(type_)) for name, type_ in values["columns"])
        server = ServerPosition.from_json(values["server"])
        return cls(values["node"], values["table"], int(values["oid"]), columns, server)


@dataclass(frozen=True)
class Compared:
    """By which rules rows were compared."""

    mode: str = "full"
    numeric: str = "value"
    float_tolerance: float = 0.0
    filter: str = ""
    digest: str = "native"

    @classmethod
    def of(cls, spec: TableSpec, *, mode: str = "full", float_tolerance: float = 0.0) -> Compared:
        """Return how the rows of a specification are hashed."""
        return cls(mode, spec.numeric, float_tolerance, spec.filter, spec.digest)


@dataclass(frozen=True)
class Rules:
    """What rows of a table are compared by: names and types of columns per node, the key, and how they are hashed."""

    source: tuple[tuple[str, str], ...]
    target: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    compared: Compared

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        columns = {
            "source": [list(column) for column in self.source],
            "target": [list(column) for column in self.target],
        }
        return {**columns, "key": list(self.key), "compared": asdict(self.compared)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rules:
        """Return what `as_json` made."""
        source, target = (
            tuple((str(name), str(type_)) for name, type_ in values[side]) for side in ("source", "target")
        )
        return cls(source, target, tuple(values["key"]), Compared(**values["compared"]))


@dataclass(frozen=True)
class Void:
    """Why a certificate does not hold any more, and since when."""

    reason: str
    at: datetime


@dataclass(frozen=True)
class Certificate:
    """The certificate of one table of a validation; `table` is its name on the source.

    `proven_at` is when the first block of the proof was hashed: everything that was committed before is included.
    Positions are those at that time.
    """

    validation: str
    table: str
    how: How
    source: CertifiedTable
    target: CertifiedTable
    key: tuple[str, ...]
    compared: Compared
    proven_at: datetime
    # When the last block was hashed, or the run ended.
    completed_at: datetime
    void: Void | None = None
    # When the first of an unbroken sequence of valid certificates was proven; it is set when the certificate is stored.
    valid_since: datetime | None = field(default=None, compare=False)

    @property
    def is_valid(self) -> bool:
        """Return whether nothing has voided it."""
        return self.void is None


@dataclass(frozen=True)
class CertificateBlock:
    """A block of a certified table: its digest, equal on both nodes, and when and where it was hashed last.

    All changes of the source from `source_lsn` on, and of the target from `target_lsn` on (if they are captured), are
    judged apart from it. `is_touched`: captured changes since then concern rows of the block, or rows differed when it
    was hashed (they are judged apart, too); its digest is not that of the rows now.
    """

    block: Block
    digest: Digest = EMPTY
    hashed_at: datetime | None = None
    source_lsn: int | None = None
    target_lsn: int | None = None
    is_touched: bool = True
    # The last watch in which it was touched: see `verbs.validate.proving.record`.
    touched_in: int = field(default=0, compare=False)
    # The seed of its digest, which is never used again; 0: parts with seeds of their own were added.
    seed: int = 0
    # The number of its row in the meta database.
    id: int = field(default=0, compare=False)


def in_order(blocks: Iterable[CertificateBlock]) -> list[CertificateBlock]:
    """Return blocks in key order, from the open start to the open end; raise TrueupError if a part is missing."""
    by_start: dict[KeyValues | None, CertificateBlock] = {}
    for block in blocks:
        by_start[block.block.start] = block
    ordered: list[CertificateBlock] = []
    start: KeyValues | None = None
    while by_start:
        following = by_start.pop(start, None)
        if following is None:
            raise TrueupError(
                f"the blocks of a certificate do not cover all keys: none starts at {start}",
                cure="compare the tables again: run trueup diff, or wait until they are scrubbed",
            )
        ordered.append(following)
        start = following.block.end
        if start is None:
            break
    if by_start or (ordered and start is not None):
        raise TrueupError(
            "the blocks of a certificate overlap or do not cover all keys",
            cure="compare the tables again: run trueup diff, or wait until they are scrubbed",
        )
    return ordered
