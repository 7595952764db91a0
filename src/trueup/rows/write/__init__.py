"""The one way to write rows to PostgreSQL: repair, undo, sync and the PostgreSQL sink compose these steps.

Reading order: `target` (the table and the columns that can be written), `triggers` (silence triggers and foreign keys
where the role may), `key_lists` (lists of keys as parameters of a statement), `copy_text` (rows and keys in the text
format of COPY), `copy` (rows out of one node and into another), `stage` (rows in a temporary table first), `delete` (by
key list), `guarded` (delete or lock only rows that are as they were read), `insert` (rows from an array literal),
`upsert` (from a staging table, without deleting a row), `ordered` (several tables in the order of their foreign keys),
`references` (verify what silenced triggers did not check), `origin` (a transaction that subscriptions can leave out).

Each step runs in the transaction of its caller and commits nothing; `origin` is such a transaction. There are two
combinations. With triggers silenced, all keys are deleted and the rows copied in: swapped unique values, changed keys
and cycles need no order, and
`references` verifies the foreign keys afterwards. With triggers firing, rows are staged and updated in place, parents
before children, so that no row that is referred to is ever deleted and inserted again.
"""

from __future__ import annotations
