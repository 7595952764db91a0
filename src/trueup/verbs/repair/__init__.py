"""What differs is mended.

Reading order: `call` (the Python API), `run` (the whole path), `request`, `layout` (which columns are carried), `lines`
(rows as COPY writes them), `modes` and `nulls` (what becomes of a key), `plan`, `plan_file` and `conditions` (what a
person decided), `prepare` (what a task does), `rights` (may it be written), `execute` (one transaction a node),
`references` (what no trigger has checked), `undo_file` and `undo` (the way back), `result` (the answer), `validation`
(the open errors of a validation, table by table).
"""

from __future__ import annotations
