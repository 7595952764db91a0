"""The block-hash table diff, and the quick check. Called, as `trueup.diff("public.t", …)`, it is the verb itself.

Reading order: `call` (the Python API), `run` (the whole path), `request`, `check` and `filter` (before any work),
`ranges` (where to cut), `work` (what a task is), `hash`, `split`, `compare` (what a task does), `keyless` (tables
without a key), `physical` (scans by pages), `steering` (pauses and limits between tasks), `collect` (what comes back),
`recheck` and `again` (in flight or not), `spool`, `journal` and `resume` (taking a run up again), `result` (the
answer); `many`, `tables` and `shared` (many tables in one run).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup.report.model import DiffResult


class _Verb(ModuleType):
    # The folder and the public function share the name `trueup.diff`; Python would let one hide the other.
    def __call__(self, table: str, **options: Any) -> DiffResult:
        from trueup.diff.call import diff

        return diff(table, **options)


sys.modules[__name__].__class__ = _Verb
