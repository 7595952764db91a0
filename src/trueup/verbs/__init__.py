"""The verbs: one package each; `run.py` of a package is the path of its data.

Reading order: `diff` (compare tables), `compare` (compare a table on nodes of other kinds), `accept` (differences that
are wanted), `certificate` (signed statements of what was proven), `repair` (write the rows that differ), `schema`
(compare definitions), `validate` (check replicated changes), `tube` (deliver changes to sinks), `tube_proof` (compare a
sink with its tables), `sync` (copy a database), `sync_ddl` (change the tables of a sync), `switchover` (move
applications to the copy), `difflog` (a signed version log), `difflog_ends` (its inputs and its proof), `doctor` (check
the environment), `schedule` (run commands at times).
"""

from __future__ import annotations
