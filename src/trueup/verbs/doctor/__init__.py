"""Checks whether a run would work: one finding per check, with its cure. Changes nothing.

Reading order: `run` (the path of the verb), `model` (what to check, a finding), then one module per group of checks:
`configuration`, `machine`, `spark`, `disk`, `tasks`, `nodes`, `across`, `tables`, `switchover`; `guarded` (an error in
one check does not stop the others), `text` (findings as text).
"""

from __future__ import annotations
