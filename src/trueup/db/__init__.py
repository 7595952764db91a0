"""The database layer: addresses in, sessions and catalog facts out.

Reading order: `node` (one pinned session), `snapshot` (one consistent view of a node, held by the driver), `reader`
(the sessions that tasks read with), `catalog` (what a table is), `schema` (all objects of a database, compared across
nodes), `names` and `statements` (how SQL is put together).
"""

from __future__ import annotations
