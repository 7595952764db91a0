"""The two ends of a version log: `difflog join` makes its chunk sets, `difflog prove` proves its rows.

Reading order: `join_files` (raw files to a chunk set), `join` (the join on DataFrames), `prove` (reads the table or the
logs), `judge` (judges every key).
"""

from __future__ import annotations
