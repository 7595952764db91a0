"""The one way to write rows to PostgreSQL: repair, undo, sync and the PostgreSQL sink compose these steps.

Reading order: `target` (the table and the columns that can be written), `triggers` (silence triggers and foreign keys
where the role may, or give them their search_path), `disabled_triggers` (those that a sync disables), `key_lists`
(lists of keys as parameters of a statement), `copy_text` (rows and keys in the text format of COPY), `copy` (rows out
of one node and into another), `stage` (rows in a temporary table first), `delete` (by key list), `guarded` (delete or
lock only rows that are as they were read), `insert` (rows from an array literal), `unique` (indexes in which values may
collide), `changes` (update in place the columns that differ), `equal_keys` (keys that differ in their text only),
`upsert` (from a staging table, without deleting a row), `ordered` (several tables in the order of their foreign keys),
`large_objects` (their content, owners and privileges), `references` (verify what silenced triggers did not check),
`origin` (a transaction that subscriptions can leave out).

Each step runs in the transaction of its caller and commits nothing; `origin` is such a transaction. Where applications
write at the same time (repair, undo, the PostgreSQL sink), a row that exists is updated in place: another session that
waits for its lock finds it afterwards. A sync owns the tables of its target: with triggers silenced, it deletes all
keys and inserts the rows; with triggers firing, `ordered` updates the rows in place that others refer to. `references`
verifies the foreign keys that silenced triggers do not check.
"""

from __future__ import annotations
