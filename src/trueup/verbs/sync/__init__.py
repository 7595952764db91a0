"""`trueup sync`: copy a whole database to another one and keep the copy up to date.

Reading order: `run` (the path: plan, change log, copy, rounds), `request` (what the user asked for), `identity` (which
sync it is, of which databases), `model` (tables, sequences, plan, result of a round), `plan` and `check` (what a sync
will do, or why it cannot), `members` (the tables on both databases, by oid), `aside` (tables that cannot be synced at
present), `definitions` (changes of columns that no row shows), `changelog` (which keys were touched), `state` (how far
a sync is, kept on the target), `silence` (triggers of the target that must not fire), `target_schema` (the objects of
the source, and `--create-schema`), `snapshot_copy` and `copy` (all rows once), `reshaped` (tables that are changed
meanwhile), `link` (the open sessions of a sync), `runner` (which kind of round fits), `round` (a small round), `large`
(a round over tasks), `following` (rounds while tables are changed), `totals` (when rounds end, and their sum),
`status`, `ending` (stop and drop), `turn` (make room for a rehearsal), `text` (plan and status as text).
"""

from __future__ import annotations
