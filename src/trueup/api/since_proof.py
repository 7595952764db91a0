"""What `--since-proof` takes from the certificates of a validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trueup.api.validate import Validation
from trueup.config.model import Config
from trueup.db.names import display_name
from trueup.proof import store
from trueup.proof.model import Certificate, CertificateBlock
from trueup.proof.since import proven_table
from trueup.rows.proven import ProvenTable
from trueup.rows.spec import TableSpec
from trueup.verbs.validate.meta import Meta, meta_of

# Seconds to wait until a validation has judged all changes up to the snapshots of the run.
_TIMEOUT = 60.0
_Known = tuple[Certificate, list[CertificateBlock]]


class ValidationProver:
    """The certificates of a validation; its blocks are read when this is made, before the snapshots of the run."""

    def __init__(self, config: Config, name: str) -> None:
        """Read the blocks. Raises ConfigError if the validation does not exist."""
        self._config = config
        self._validation = Validation(name, config=config)
        with meta_of(config, name, read_only=True) as meta:
            meta.need(name)
            tables = store.certificates(meta.connection, name) if store.is_made(meta.connection) else {}
            self._before = {table: _read(meta, name, table) for table in tables}

    def proven(self, spec: TableSpec, tables: Mapping[str, tuple[str, int]]) -> ProvenTable:
        """Return what is proven of a table, after all changes up to now were judged on both nodes."""
        name, table = self._validation.name, display_name(spec.schema, spec.table)
        known = self._before.get(table)
        if known is None:
            return ProvenTable(name, reason=f"the validation {name} has no certificate of it")
        certificate, before = known
        first = proven_table(certificate, before, before, spec, tables)
        if first.reason or not first.proven_blocks:
            # Nothing can be taken from it: nothing to wait for.
            return first
        proof = self._validation.prove([table], timeout=_TIMEOUT, record=False)
        (judged,) = proof.tables
        if judged.verdict != "MATCH":
            # A row that differs may be in a block that was hashed before it differed.
            return ProvenTable(name, reason="; ".join(judged.reasons) or f"its rows have the verdict {judged.verdict}")
        with meta_of(self._config, name, read_only=True) as meta:
            certificate, after = _read(meta, name, table)
        positions = {proof.source: proof.source_position, proof.target: proof.target_position or ""}
        return replace(proven_table(certificate, before, after, spec, tables), positions=positions)


def _read(meta: Meta, name: str, table: str) -> _Known:
    """Return the certificate and the blocks of a table, in one snapshot of the meta database."""
    with meta.errors(), meta.connection.transaction():
        meta.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return store.certificates(meta.connection, name)[table], store.blocks(meta.connection, name, table)
