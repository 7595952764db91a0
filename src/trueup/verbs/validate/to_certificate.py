"""What a validation has proven: the certificates of its tables, with their blocks. A void one is stated as void."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.config.model import Config
from trueup.config.wording import counted
from trueup.errors import CheckFailed
from trueup.proof import store
from trueup.proof.document import hash_of
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable
from trueup.verbs.validate import pending
from trueup.verbs.validate.meta import Meta, meta_of
from trueup.verbs.validate.proving.prove import unproven
from trueup.verbs.validate.status import Status, TableStatus, read_status


def tables_of_validation(
    config: Config, name: str, tables: Sequence[str], *, meta_node: str = ""
) -> list[dict[str, Any]]:
    """Return what a validation has proven of some of its tables (none named: all), in one snapshot of its state."""
    with meta_of(config, name, meta_node, read_only=True) as meta:
        # Also a reason to be void: an older version made no certificates.
        is_made = store.is_made(meta.connection)
        with meta.connection.transaction():
            meta.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            status = read_status(meta, name)
            known = store.certificates(meta.connection, name) if is_made else {}
            chosen = _chosen(status, tables)
            return [_table(meta, status, each, known.get(each.source)) for each in chosen]


def _chosen(status: Status, tables: Sequence[str]) -> list[TableStatus]:
    by_name = {table.source: table for table in status.tables}
    unknown = [name for name in tables if name not in by_name and f"public.{name}" not in by_name]
    if unknown:
        raise CheckFailed(
            [f"the validation {status.name} has no table {name}" for name in unknown],
            cure=f"use its tables: {', '.join(by_name)}",
        )
    return [by_name.get(name) or by_name[f"public.{name}"] for name in tables or by_name]


def _table(meta: Meta, status: Status, table: TableStatus, certificate: Certificate | None) -> dict[str, Any]:
    blocks = store.blocks(meta.connection, status.name, table.source) if certificate else []
    # Also rows that the scrub found and that were not checked yet: no marker is waited for.
    last = max((block.source_lsn or 0 for block in blocks), default=0)
    suspects = meta.value("undecided", pending.FILE, name=status.name, source=table.source, position=last)
    reason = "; ".join(_reasons(status, table, certificate, blocks, suspects))
    values: dict[str, Any] = {
        "table": table.source,
        "reason": reason,
        "validation": status.name,
        "task": None,
    }
    extent = table.extent
    if certificate is None or extent is None:
        return values
    compared = certificate.compared
    return {
        **values,
        "how": certificate.how,
        "proven_at": _time(certificate.proven_at),
        "completed_at": _time(certificate.completed_at),
        # All captured changes before these positions of the source and the target are judged.
        "judged_until": status.validated,
        "judged_until_on_target": status.target_position,
        "judged_at": status.validated_at,
        "nodes": [_node(certificate.source), _node(certificate.target)],
        "key": list(certificate.key),
        "compared": {
            "columns": [list(column) for column in certificate.source.columns],
            "filter": extent.filter or compared.filter,
            "selected": list(extent.selected),
            "left_out": list(extent.left_out),
            "is_whole": extent.is_whole and not compared.filter,
            "is_consistent": True,
            "numeric": compared.numeric,
            "mode": compared.mode,
            "float_tolerance": str(compared.float_tolerance),
            "digest": compared.digest,
        },
        "rows": sum(block.digest.count for block in blocks),
        "blocks": _blocks(blocks),
    }


def _reasons(
    status: Status,
    table: TableStatus,
    certificate: Certificate | None,
    blocks: Sequence[CertificateBlock],
    suspects: int,
) -> Iterator[str]:
    """Yield why nothing can be stated as proven."""
    yield from unproven(status, table)
    for state, words in (("new", "open errors"), ("ignored", "errors that are ignored")):
        if table.errors.get(state, 0):
            yield f"{table.errors[state]:,} rows are {words}"
    if suspects:
        yield f"not decided yet: {counted(suspects, 'row')} that differed"
    if certificate is None:
        return
    if not blocks or any(block.hashed_at is None for block in blocks):
        yield "not all blocks were hashed"
    for node, at, judged in (
        (status.source, certificate.source.server.position, status.validated),
        (status.target, certificate.target.server.position, status.target_position),
    ):
        if at is not None and (judged is None or lsn_number(judged) < at):
            yield f"changes of {node} up to {lsn_text(at)} are not all judged yet"


def _node(table: CertifiedTable) -> dict[str, Any]:
    position = table.server.position
    return {
        "node": table.node,
        "table": table.table,
        "table_oid": table.oid,
        "system": table.server.system,
        "timeline": table.server.timeline,
        "position": None if position is None else lsn_text(position),
    }


def _blocks(blocks: Sequence[CertificateBlock]) -> dict[str, Any]:
    """Return the number of blocks and a hash over all of them: key range, rows, seed, sum of hashes, time, positions.

    The seed of a block was never used again. The hash commits to it; the meta database has it, until the next pass.
    """
    listed = [
        [
            None if block.block.start is None else list(block.block.start),
            None if block.block.end is None else list(block.block.end),
            block.digest.count,
            str(block.seed),
            str(block.digest.sum),
            None if block.hashed_at is None else _time(block.hashed_at),
            None if block.source_lsn is None else lsn_text(block.source_lsn),
            None if block.target_lsn is None else lsn_text(block.target_lsn),
            block.is_touched,
        ]
        for block in blocks
    ]
    hashed = [block.hashed_at for block in blocks if block.hashed_at is not None]
    return {
        "count": len(blocks),
        "touched": sum(block.is_touched for block in blocks),
        "oldest_hashed_at": _time(min(hashed)) if hashed else None,
        "sha256": hash_of({"blocks": listed}),
    }


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
