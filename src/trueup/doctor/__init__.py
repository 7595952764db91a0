"""Would a run work here? One line a check, with its cure. Called, as `trueup.doctor("public.t", …)`, it is the verb.

Reading order: `call` (the Python API), `model` (what a finding is), `run` (the whole path), then a file for each family
of checks: `configuration`, `machine`, `spark`, `disk`, `tasks`, `nodes`, `across`, `tables`, `switchover`. `guarded`
sees to it that no check stops another. Nothing is changed anywhere.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup.doctor.model import Diagnosis


class _Verb(ModuleType):
    # The folder and the public function share the name `trueup.doctor`; Python would let one hide the other.
    def __call__(self, *tables: str, **options: Any) -> Diagnosis:
        from trueup.doctor.call import doctor

        return doctor(*tables, **options)


sys.modules[__name__].__class__ = _Verb
