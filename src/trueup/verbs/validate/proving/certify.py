"""Makes the certificate of a table whose blocks were all hashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from trueup.db.server_identity import ServerPosition
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable, Compared, Rules
from trueup.rows.keys import Block
from trueup.rows.spec import TableSpec
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.settings import Settings


@dataclass(frozen=True)
class Marks:
    """Positions of both nodes: changes from there on are not judged yet."""

    source: int
    target: int | None


def certificate_of(
    sessions: Sessions, pair: Pair, blocks: Sequence[CertificateBlock], proven_at: datetime
) -> Certificate:
    """Return the certificate of a table; all blocks were hashed since `proven_at`, and its servers are those stored."""
    settings, servers = sessions.settings, sessions.meta.need(sessions.name).servers
    rules = rules_of(pair, settings)
    source_at = _at(servers["source"], [block.source_lsn for block in blocks])
    target_at = _at(servers["target"], [block.target_lsn for block in blocks])
    source = CertifiedTable(settings.source, pair.name, pair.oid, rules.source, source_at)
    target = CertifiedTable(settings.target, pair.target_name, pair.target_oid, rules.target, target_at)
    return Certificate(
        sessions.name, pair.name, "scrub", source, target, rules.key, rules.compared, proven_at,
        max(block.hashed_at for block in blocks if block.hashed_at is not None),
    )  # fmt: skip


def rules_of(pair: Pair, settings: Settings) -> Rules:
    """Return what the rows of a table are compared by."""
    compared = Compared.of(pair.source, mode=settings.mode, float_tolerance=settings.float_tolerance)
    return Rules(_columns(pair.source), _columns(pair.target), pair.key, compared)


def merged(blocks: Sequence[CertificateBlock], rows: int) -> list[CertificateBlock]:
    """Merge neighbours that have at most `rows` rows together: rows were deleted. Digests add up."""
    result = list(blocks[:1])
    for _, block in pairwise(blocks):
        last = result[-1]
        if last.digest.count + block.digest.count > rows:
            result.append(block)
            continue
        result[-1] = replace(
            last,
            block=Block(last.block.start, block.block.end),
            digest=last.digest + block.digest,
            seed=0,
            hashed_at=min(last.hashed_at, block.hashed_at) if last.hashed_at and block.hashed_at else None,
            source_lsn=_first([last.source_lsn, block.source_lsn]),
            target_lsn=_first([last.target_lsn, block.target_lsn]),
            is_touched=last.is_touched or block.is_touched,
        )
    return result


def _columns(spec: TableSpec) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.type) for column in spec.columns)


def _at(server: Mapping[str, Any], positions: Sequence[int | None]) -> ServerPosition:
    return replace(ServerPosition.from_json(server), position=_first(positions))


def _first(positions: Sequence[int | None]) -> int | None:
    known = [position for position in positions if position is not None]
    return min(known) if len(known) == len(positions) else None
