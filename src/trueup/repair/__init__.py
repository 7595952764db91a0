"""What differs is mended. Called, as `trueup.repair(report, …)`, it is the verb itself.

Reading order: `call` (the Python API), `run` (the whole path), `request`, `layout` (which columns are carried), `lines`
(rows as COPY writes them), `modes` and `nulls` (what becomes of a key), `plan`, `plan_file` and `conditions` (what a
person decided), `prepare` (what a task does), `rights` (may it be written), `execute` (one transaction a node),
`references` (what no trigger has checked), `undo_file` and `undo` (the way back), `result` (the answer), `validation`
(the open errors of a validation, table by table).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup.report.repair import RepairResult


class _Verb(ModuleType):
    # The folder and the public function share the name `trueup.repair`; Python would let one hide the other.
    def __call__(self, report: str, **options: Any) -> RepairResult:
        from trueup.repair.call import repair

        return repair(report, **options)


sys.modules[__name__].__class__ = _Verb
