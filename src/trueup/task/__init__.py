"""How any verb runs: open the nodes, record the task, start the engine, steer it, finish.

Reading order: `open` (record a verb's work as a task), `nodes` (sessions with all nodes), `together` (query nodes in
parallel), `connections` (free connections, addresses for executors), `job` (what all tasks of a run share), `shared`
(one engine for several runs), `steering` (pause, stop, throttle), `past` (the keys of a past report), `past_run` (the
tables of a past run), `accepted` (differences that are known and wanted), `materialized` (views and statistics),
`compare` (compare rows by key, and report).
"""

from __future__ import annotations
