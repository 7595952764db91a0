"""Which blocks of a certificate still hold in the snapshots of a run, and need not be read.

The blocks are read from the meta database twice: before the snapshots are taken, and after everything up to them was
judged. A block is proven only if it is the same both times (it was not hashed in between: its rows may have been read
after the snapshots) and untouched at the end (no change of either node, up to the snapshots, concerns it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable
from trueup.rows.proven import ProvenTable
from trueup.rows.spec import TableSpec

# Per node: the system with the database, and the OID of the table.
Tables = Mapping[str, tuple[str, int]]


def proven_table(
    certificate: Certificate | None,
    before: Sequence[CertificateBlock],
    after: Sequence[CertificateBlock],
    spec: TableSpec,
    tables: Tables,
) -> ProvenTable:
    """Return which blocks are proven; `before` and `after` are those of the certificate, in key order."""
    if certificate is None:
        return ProvenTable("", reason="the table has no certificate")
    reason = why_not(certificate, spec, tables)
    if reason or not after:
        return ProvenTable(certificate.validation, reason=reason or "the certificate has no blocks")
    known = {(block.id, block.block, block.hashed_at) for block in before if block.hashed_at is not None}
    touched: list[CertificateBlock] = []
    proven: list[CertificateBlock] = []
    for block in after:
        is_proven = not block.is_touched and (block.id, block.block, block.hashed_at) in known
        (proven if is_proven else touched).append(block)
    oldest = min((block.hashed_at for block in proven if block.hashed_at is not None), default=None)
    return ProvenTable(
        certificate.validation,
        tuple(block.block for block in touched),
        sum(block.digest.count for block in touched),
        len(proven),
        sum(block.digest.count for block in proven),
        _time(certificate.proven_at),
        _time(oldest) if oldest else "",
    )


def why_not(certificate: Certificate, spec: TableSpec, tables: Tables) -> str:
    """Return why a certificate says nothing about the rows that a run compares; "" if it does."""
    if certificate.void is not None:
        return f"the certificate is void: {certificate.void.reason}"
    sides = {side.node: side for side in (certificate.source, certificate.target)}
    if set(sides) != set(tables):
        return f"the certificate is of the nodes {', '.join(sides)}"
    for node, side in sides.items():
        system, oid = tables[node]
        if side.server.system != system:
            return f"{node} is another server or database ({system}, certified {side.server.system})"
        if side.oid != oid:
            return f"the table on {node} was created again (OID {oid}, certified {side.oid})"
    return _other_rules(certificate, spec) or _other_columns(certificate.source, certificate.target, spec)


def _other_rules(certificate: Certificate, spec: TableSpec) -> str:
    compared = certificate.compared
    if spec.is_keyless or certificate.key != spec.key_names:
        return f"the certificate has the key {', '.join(certificate.key)}"
    if compared.mode != "full":
        return f"the validation has the mode {compared.mode}, which does not compare all columns"
    if compared.float_tolerance:
        return f"the validation has the tolerance {compared.float_tolerance:g} for floats"
    if compared.filter or spec.filter:
        return "rows are filtered"
    if compared.numeric != spec.numeric:
        return f"the validation compares numerics by {compared.numeric}"
    return ""


def _other_columns(source: CertifiedTable, target: CertifiedTable, spec: TableSpec) -> str:
    """Return why a column that the run compares is not covered by the certificate."""
    for side in (source, target):
        types = dict(side.columns)
        missing = [column.name for column in spec.columns if types.get(column.name) != column.type]
        if missing:
            return f"the certificate does not cover {', '.join(missing)} of {side.node}"
    return ""


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
