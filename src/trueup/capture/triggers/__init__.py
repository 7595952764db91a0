"""Capture by triggers: tubes, which are queue tables that record the keys of touched rows, never the rows.

Reading order: `model` (dataclasses), `session` (a connection, calls of the installed functions), `install` (the
functions of the folder sql), `expressions` (functions in predicates and routings), `tubes` (tubes and attached tables),
`backfill` and `scheduled` (all keys of a table), `pods` (claim, read, delete), `readers` (detects a restored database),
`hold` (locks and generations), `batch` (pods to keys), `shape` and `queue` (the next batch), `document` and `enrich`
(keys to documents), `problems` (the problem check of attached tables), `sync_turns` (write to the target of a sync).
The design is described in docs/design/tubes.md.
"""

from __future__ import annotations
