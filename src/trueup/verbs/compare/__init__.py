"""Compare a table on nodes of any kind, by digests of canonical rows: `trueup diff` and `check` across kinds.

Reading order: `run` (the path of one table), `request` (what is compared), `prepare` (open the nodes, match columns),
`digests` (blocks, and their digests on all nodes), `rows` (the rows of differing blocks) with `local_rows`, `recheck`
(tell differences from changes in flight), `explain` (how columns are compared, without reading rows).
"""

from __future__ import annotations
