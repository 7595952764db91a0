"""After a repair: all its keys are looked at again, on all nodes. Only what a rerun finds equal is repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trueup.engine.progress import Progress
from trueup.engine.work import Engine
from trueup.errors import TrueupError
from trueup.rows.keys import KeyValues
from trueup.rows.spec import TableSpec
from trueup.task.compare.rerun import rerun_keys
from trueup.task.past import Past
from trueup.verbs.repair.result import Ending


def verify(ending: Ending, past: Past | None, keys: Sequence[KeyValues], progress: Progress, engine: Engine) -> None:
    """Look at the keys again, whether or not their rows meet the filter; a look that fails is no proof."""
    earlier = past or _past(ending, keys)
    asked = replace(ending.asked, filter="", rerun_of=earlier.path or ending.of)
    try:
        seen, result = rerun_keys(asked, earlier, ending.task_id, progress, engine=engine)
    except TrueupError as error:
        ending.failed["the rerun"] = str(error)
        return
    ending.verified = result.report
    ending.remaining = seen.state.suspects.count
    if result.incomplete:
        ending.failed["the rerun"] = "; ".join(result.incomplete)


def _past(ending: Ending, keys: Sequence[KeyValues]) -> Past:
    """Given keys as if a report had named them."""
    spec: TableSpec = ending.spec
    summary: dict[str, Any] = {
        "verdict": "DIFFER",
        "schema": spec.schema,
        "table": spec.table,
        "nodes": list(ending.asked.node_names),
        "primary_key": list(spec.key_names),
        "columns": list(spec.column_names),
    }
    return Past("", summary, {"hash_seed": spec.seed}, (), tuple(keys), (), (0,) * len(keys))
