"""Would a run work here? One line a check, with its cure.

Reading order: `call` (the Python API), `model` (what a finding is), `run` (the whole path), then a file for each family
of checks: `configuration`, `machine`, `spark`, `disk`, `tasks`, `nodes`, `across`, `tables`, `switchover`. `guarded`
sees to it that no check stops another. Nothing is changed anywhere.
"""

from __future__ import annotations
