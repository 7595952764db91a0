"""Tubes: queue tables in the database that record which keys were touched, never the rows.

Reading order: `call` (`trueup.tube.open(...)` and all that can be asked of the tubes of a node), `model` (what comes
back), `install` (the SQL of the folder `sql`, one function a file), `tubes` (tubes and the tables attached to them),
`backfill` (all keys of a table, in three steps), `pods` (claim, read again, delete; the lock of a partition),
`session` (one connection, errors by name). The job that keeps a sink in step: `run` (its path), `job` (around it),
`hold` (locks and generations), `batch`, `shape` and `enrich` (from pods to documents), `lanes` and `deliver` (to the
sink), `letters`, `garbage`, `scheduled`, `pace`, and the folders `sinks` and `stream`. How it works inside is in
docs/design/tubes.md.
"""

from __future__ import annotations
