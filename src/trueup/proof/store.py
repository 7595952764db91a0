"""The tables `trueup.certificate` and `trueup.certificate_block` of a meta database.

All functions use the session of the caller, in its transaction: a certificate, its blocks and the positions of the
validation are stored together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.db.storable import as_json, storable
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable, Compared, Void, in_order
from trueup.rows.digest import Digest
from trueup.rows.keys import Block


@dataclass(frozen=True)
class Age:
    """The blocks of one table: their number, those never hashed, those touched, and when the oldest one was hashed."""

    blocks: int
    unhashed: int
    touched: int
    oldest_at: datetime | None


def make(connection: Connection) -> None:
    """Create the tables that do not exist yet; `trueup.validation_table` exists."""
    connection.execute(load("trueup.proof", "store.sql")["make"])


def is_made(connection: Connection) -> bool:
    """Return whether the tables exist."""
    return bool(_rows(connection, "is_made")[0]["is_made"])


def drop(connection: Connection) -> None:
    """Drop the tables."""
    connection.execute(load("trueup.proof", "store.sql")["drop"])


# ---- certificates


def certificates(connection: Connection, validation: str) -> dict[str, Certificate]:
    """Return the certificates of a validation by table, also void ones."""
    rows = _rows(connection, "certificates", validation=validation)
    return {row["source"]: _certificate(row) for row in rows}


def put(connection: Connection, certificate: Certificate) -> bool:
    """Store a certificate in place of that of the same table; return whether it was stored.

    It is not if that one was voided later than this was proven, or was proven later.
    """
    values = {
        "validation": certificate.validation,
        "source": certificate.table,
        "how": certificate.how,
        "source_table": as_json(certificate.source.as_json()),
        "target_table": as_json(certificate.target.as_json()),
        "key": list(certificate.key),
        "compared": as_json(asdict(certificate.compared)),
        "proven_at": certificate.proven_at,
        "completed_at": certificate.completed_at,
    }
    return bool(_rows(connection, "put", **values))


def void(connection: Connection, validation: str, reason: str, tables: Sequence[str] | None = None) -> None:
    """Void the certificates of tables (None: all of the validation)."""
    sources = None if tables is None else list(tables)
    _rows(connection, "void", validation=validation, reason=storable(connection, reason), sources=sources)


# ---- blocks


def blocks(connection: Connection, validation: str, table: str) -> list[CertificateBlock]:
    """Return the blocks of a table in key order; they cover all keys, or there are none."""
    return in_order(block_of(row) for row in _rows(connection, "blocks", validation=validation, source=table))


def oldest(connection: Connection, validation: str, table: str) -> CertificateBlock | None:
    """Return the block of a table that was hashed longest ago, or never; None if the table is not cut into blocks."""
    rows = _rows(connection, "oldest", validation=validation, source=table)
    return block_of(rows[0]) if rows else None


def ages(connection: Connection, validation: str) -> dict[str, Age]:
    """Return by table how old its blocks are."""
    rows = _rows(connection, "ages", validation=validation)
    return {row["source"]: Age(row["blocks"], row["unhashed"], row["touched"], row["oldest_at"]) for row in rows}


def replace_all(
    connection: Connection, validation: str, table: str, new: Iterable[CertificateBlock]
) -> list[CertificateBlock]:
    """Store the blocks of a table in place of all it has; return them with their numbers."""
    ordered = in_order(new)
    _rows(connection, "drop_blocks", validation=validation, source=table, ids=None)
    return _add(connection, validation, table, ordered)


def replace_block(
    connection: Connection, validation: str, table: str, before: CertificateBlock, after: Sequence[CertificateBlock]
) -> list[CertificateBlock]:
    """Store what became of one block: itself, hashed again, or its parts; return them with their numbers."""
    if len(after) == 1 and after[0].block == before.block:
        _rows(connection, "put_block", id=before.id, **_values(after[0]))
        return [replace(after[0], id=before.id)]
    _rows(connection, "drop_blocks", validation=validation, source=table, ids=[before.id])
    return _add(connection, validation, table, after)


def drop_blocks(connection: Connection, validation: str, table: str) -> None:
    """Forget the blocks of a table: it is cut again."""
    _rows(connection, "drop_blocks", validation=validation, source=table, ids=None)


def touch(connection: Connection, ids: Iterable[int], watch: int = 0) -> None:
    """Record that captured changes concern rows of these blocks."""
    numbers = list(ids)
    if numbers:
        _rows(connection, "touch", ids=numbers, watch=watch)


def _add(
    connection: Connection, validation: str, table: str, new: Sequence[CertificateBlock]
) -> list[CertificateBlock]:
    lines = [
        {
            **_values(block),
            "start_key": _edge(block.block.start),
            "end_key": _edge(block.block.end),
            "hash_sum": str(block.digest.sum),
            "hashed_at": block.hashed_at.isoformat() if block.hashed_at else None,
        }
        for block in new
    ]
    added = _rows(connection, "add_blocks", validation=validation, source=table, lines=as_json(lines))
    return [replace(block, id=row["id"]) for block, row in zip(new, added, strict=True)]


def _values(block: CertificateBlock) -> dict[str, Any]:
    return {
        "rows": block.digest.count,
        "hash_sum": block.digest.sum,
        "seed": block.seed,
        "hashed_at": block.hashed_at,
        "source_lsn": block.source_lsn,
        "target_lsn": block.target_lsn,
        "is_touched": block.is_touched,
    }


def _edge(key: tuple[str, ...] | None) -> list[str] | None:
    return None if key is None else list(key)


def block_of(row: dict[str, Any]) -> CertificateBlock:
    """Return the block of a row of `trueup.certificate_block`."""
    start, end = (None if row[name] is None else tuple(row[name]) for name in ("start_key", "end_key"))
    return CertificateBlock(
        Block(start, end), Digest(row["rows"], int(row["hash_sum"])), row["hashed_at"], row["source_lsn"],
        row["target_lsn"], row["is_touched"], row["touched_in"], row["seed"], row["id"],
    )  # fmt: skip


def _certificate(row: dict[str, Any]) -> Certificate:
    return Certificate(
        row["validation"], row["source"], row["how"], CertifiedTable.from_json(row["source_table"]),
        CertifiedTable.from_json(row["target_table"]), tuple(row["key"]), Compared(**row["compared"]),
        row["proven_at"], row["completed_at"],
        None if row["void_reason"] is None else Void(row["void_reason"], row["void_at"]), row["valid_since"],
    )  # fmt: skip


def _rows(connection: Connection, statement: str, **values: Any) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(load("trueup.proof", "store.sql")[statement], values)
        return cursor.fetchall() if cursor.description else []
