"""The ends of a version log: `difflog init` writes an example, `join` makes chunk sets, `prove` proves the rows.

Reading order: `template` (the example of a configuration), `sample` (data for it), `join_files` (raw files to a chunk
set), `join` (the join on DataFrames), `prove` (reads the table or the logs), `judge` (judges every key).
"""

from __future__ import annotations
