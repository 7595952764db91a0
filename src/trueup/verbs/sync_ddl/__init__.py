"""Change the tables of a started sync: `trueup sync add`, `remove` and `ddl`.

Reading order: `change_tables` (add and remove tables), `change` (statements), `ddl` (those that make the tables of the
target like those of the source), `labels` (of enums), `compared` (definitions that differ by their meaning),
`apply_ddl` (run them), `text`.
"""

from __future__ import annotations
