"""Change the tables of a started sync: `trueup sync add`, `remove`, `accept` and `ddl`.

Reading order: `change_tables` (add and remove tables), `accept` (tables as they are after a restore), `change`
(statements), `ddl` (those that make the tables of the target like those of the source), `labels` (of enums),
`compared` (definitions that differ by their meaning), `apply_ddl` (run them), `text`.
"""

from __future__ import annotations
