"""Nodes of all kinds that a diff can compare: PostgreSQL, frames of Spark, files, other databases.

Reading order: `base` (the protocol of a node, and what a run compares), `mapping` (names and rules of the user),
`plan` (columns, key and classes of a run), `probe` (whether nodes compute canonical bytes), `postgres` with
`postgres_query` and `postgres_columns`, `frame` (frames of Spark) with `frame_columns`, `files` with `text_files`,
`delta`, `tables` and `iceberg` (where frames come from), `sql` (databases with a dialect of their own) with `mysql`,
`clickhouse` and `spooled`, `rows` (compare the rows of blocks that differ), `kinds` (open a node by its address).
"""

from __future__ import annotations
