"""Repair the rows that differ, and undo a repair.

Reading order: `tasks` (a repair as a task), `from_run` (the tables of a past run), `run` (the path of a repair from end
to end), `request` (the options and the tables), `prepare` (check each table), `layout` (which columns are written),
`lines` (read rows as lines of COPY), `modes` (the decision for a key), `plan`, `plan_file`, `conditions` and
`check_plan` (a plan that the user wrote), `plan_template` (a plan to start from), `writes` (what one node gets),
`settle` (from decisions to writes), `decide` (one task: read keys and decide), `spool` (writes on disk), `decisions`
(what all tasks decided), `identity` (which database they are of), `undo_file` (the old rows), `rights` (whether a node
can be written), `lag` (subscriptions that are behind), `replication` (which subscriptions get what is written), `order`
(of the foreign keys), `check_writes` (all checks before the first write), `node_work` (what a table gets, and how),
`write_rows` (updates and inserts), `write_table` (the steps that write a table), `write_node` (one transaction per
node), `write` (all nodes), `verify` (compare the keys again), `result` (the result and its report), `undo` (put the old
rows back).
"""

from __future__ import annotations
