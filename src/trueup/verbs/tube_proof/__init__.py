"""`trueup tube prove`: compare the tables of a tube with its sink, through the sink's own mapping.

Reading order: `run` (the path: tables, sink, proofs), `model` (what was found), `tables` (sinks with tables, by
digests), `parquet_state` (the current rows of a Parquet sink), `documents` (sinks with documents, in batches),
`flight` (keys that are on their way).
"""

from __future__ import annotations
