"""The block-hash table diff, and the quick check.

Reading order: `call` (the Python API), `run` (the whole path), `request`, `check` and `filter` (before any work),
`ranges` (where to cut), `work` (what a task is), `hash`, `split`, `compare` (what a task does), `keyless` (tables
without a key), `physical` (scans by pages), `steering` (pauses and limits between tasks), `collect` (what comes back),
`recheck` and `again` (in flight or not), `spool`, `journal` and `resume` (taking a run up again), `result` (the
answer); `many`, `tables` and `shared` (many tables in one run).
"""

from __future__ import annotations
