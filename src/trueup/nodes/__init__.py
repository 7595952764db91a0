"""Nodes of all kinds that a diff can compare: PostgreSQL, frames of Spark, files, other databases.

Reading order: `base` (the protocol of a node, and what a run compares), `key_numbers` (ranges of keys),
`block_digests`, `mapping` (names and rules of the user), `plan` (columns, key and classes of a run), `probe` (whether
nodes compute canonical bytes), `postgres` with `postgres_query`, `postgres_columns`, `postgres_statements`,
`postgres_hash`, `postgres_digests` and `postgres_rows`, `frame` (frames of Spark) with `frame_columns`, `files` with
`text_files`, `delta`, `tables` and `iceberg` (where frames come from), `columnar` (local files without Spark) with
`parquet_parts`, `arrow_columns`, `arrow_hash` and `columnar_workers`, `databases` (MySQL and ClickHouse), `rows`
(compare the rows of blocks that differ) with `spark_rows`, `kinds` (open a node by its address).
"""

from __future__ import annotations
