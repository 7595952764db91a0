"""The ends of a version log: `difflog init` writes an example, `join` makes chunk sets, `prove` proves the rows,
`status` shows what waits, `prune` removes old files.

Reading order: `template` (the example of a configuration), `sample` (data for it), `join_files` (raw files to a chunk
set), `join` (the join on DataFrames), `prove` (reads the table or the logs), `judge` (judges every key), `recompute`
and `key_state` (compute the states again from the chunk sets), `status` (of a log), `prune` (frees disk space).
"""

from __future__ import annotations
