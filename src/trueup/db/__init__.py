"""Database access: sessions, snapshots, the catalog and locks of PostgreSQL, and the ClickHouse backends.

Reading order: `connection` (the type of a session), `node` (opens a session with fixed settings, converts errors),
`alive` (servers that do not answer any more), `pooler` (server sessions that clients share), `durable` (commits that
wait for the disk), `database_identity` (which database it is), `server_identity` (failovers and restores), `commit`
(transactions whose outcome is known), `lock_holders` (who holds the lock that a session waits for), `table_lock` (locks
that give way), `snapshot` (a consistent view of a node, held by the driver), `bound` (values that do not stand in the
text of a statement), `reader` (the sessions that tasks read with), `arrow` and `copy_out` (bulk reads as Arrow batches
and as COPY data), `casts` (expressions that call no cast of a type's owner), `catalog` (columns, keys and rights of a
table), `schema` (all objects of a database, compared across nodes), `meaning` (definitions that versions print
differently), `sequences` (their values), `foreign_keys` (order of tables, broken references), `trust` (schemas that
other roles prepared), `own_path` (the search_path of triggers), `foreign_code` (code of other roles that a superuser
would run),
`private` (objects of trueup that only their owner may
use), `watch` (load of the nodes during a run), `names` and `patterns` (names of tables as users write them),
`drop_schema` (the last step of an uninstall), `statements` (SQL from files), `storable` (messages that every encoding
has), `expressions` (functions in SQL expressions of the user), `called` (functions with effects), `scan` (whether a
text is one expression), `node_tree` (the parse tree that the server prints), `clickhouse` (a ClickHouse server and the
embedded one).
"""

from __future__ import annotations
