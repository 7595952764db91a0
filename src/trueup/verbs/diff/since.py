"""`--since-proof`: read only the blocks that captured changes touched since a certificate was made."""

from __future__ import annotations

from dataclasses import replace

from trueup.db.node import error_from_server
from trueup.db.server_identity import table_identity
from trueup.rows.proven import ProvenTable, Prover
from trueup.task.compare.state import Comparison
from trueup.verbs.diff.blocks import compare_blocks
from trueup.verbs.diff.physical import is_scattered

# Above this share of the rows, one pass over the table costs less than its blocks one by one. Rows of a table that is
# not in the order of its key are read from all over the table.
_MOST, _MOST_SCATTERED = 0.5, 0.05


def compare_touched(run: Comparison, prover: Prover) -> bool:
    """Compare the touched blocks; return False if all rows have to be read, which the result then says."""
    proven = prover.proven(run.job.spec, _tables(run))
    if not proven.reason:
        most = _MOST_SCATTERED if is_scattered(run.controls, run.job.spec) else _MOST
        if proven.share > most:
            proven = replace(proven, reason=f"blocks with {proven.share:.0%} of the rows were touched")
    run.state.proven = proven if not proven.reason else ProvenTable(proven.validation, reason=proven.reason)
    if proven.reason:
        return False
    # The journal counts the blocks of the plan: a run that is resumed reads all of them.
    run.state.journal = None
    compare_blocks(run, dict(enumerate(proven.touched)))
    return True


def _tables(run: Comparison) -> dict[str, tuple[str, int]]:
    """Return per node the system (with the database) and the OID of the table, in the snapshots of the run."""
    tables = {}
    for control in run.controls:
        try:
            identity = table_identity(control.connection, run.job.spec.schema, run.job.spec.table)
        except Exception as error:
            raise error_from_server(error, control.node) from None
        tables[control.node.name] = identity.system, identity.table
    return tables
