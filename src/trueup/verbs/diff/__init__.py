"""The verbs diff, check and rerun: hash a table in blocks on all nodes, and find the rows that differ.

Reading order: `run` (the path of one table), `ranges` (plan the blocks), `certify` (blocks of a validation), `compare`
(by blocks, by pages or as a multiset), `blocks` (blocks of a key), `count` (whether they have all rows), `since` (only
blocks that were touched since a certificate), `work` (the tasks), `hash`, `split` and `units` (what a task does),
`physical` (scans by pages), `keyless` (tables without a key), `answers` (handle the answers of tasks), `rehash` (the
re-check of a check), `journal` and `resume` (continue an interrupted run), `rerun` (compare the keys of a past report),
`many`, `tables` and `pool` (many tables in one run), `rerun_many` (compare the keys of all tables of a past run).
"""

from __future__ import annotations
