"""After a repair: compare all its keys again, on all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trueup.engine.progress import Progress
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.task.compare.rerun import rerun_keys
from trueup.task.past import Past
from trueup.task.shared import Shared
from trueup.verbs.repair.request import RepairTable
from trueup.verbs.repair.result import Ending, failing

_RERUN = "the rerun"


def verify(ending: Ending, table: RepairTable, progress: Progress, shared: Shared) -> None:
    """Rerun the diff for the keys of a table, without the filter; a rerun that fails makes the repair FAILED."""
    keys, request = table.load(), table.request
    earlier = keys.past or _past(ending.spec, request, keys.keys)
    unfiltered = replace(request, filter="", rerun_of=earlier.path or ending.of)
    with failing([ending], _RERUN):
        rerun, result = rerun_keys(unfiltered, earlier, ending.task_id, progress, shared=shared)
        ending.verified = result.report
        ending.remaining = rerun.state.suspects.count
        if rerun.state.failures or rerun.state.stopped:
            ending.failed[_RERUN] = "; ".join(result.incomplete)
        # Such as a Spark that was lost meanwhile.
        ending.remarks += [remark for remark in rerun.run.engine.remarks if remark not in ending.remarks]
        # Rows that change all the time may differ at every look: they remain, and the repair did not fail.
        ending.remarks += (
            []
            if ending.failed
            else [f"verified: {reason}" for reason in result.incomplete if reason != earlier.unlisted]
        )


def _past(spec: TableSpec, request: TableRequest, keys: Sequence[KeyValues]) -> Past:
    """Return a report that lists these keys, for a repair that has none."""
    summary: dict[str, Any] = {
        "verdict": "DIFFER",
        "schema": spec.schema,
        "table": spec.table,
        "nodes": list(request.node_names),
        "primary_key": list(spec.key_names),
        "columns": list(spec.column_names),
    }
    return Past("", summary, {"hash_seed": spec.seed}, (), tuple(keys), (), (0,) * len(keys))
