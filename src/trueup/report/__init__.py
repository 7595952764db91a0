"""Results for users and programs: typed models, shown as text, JSON or HTML.

Reading order: `extent` (what a verdict is about), `model` (a diff), `text`, `json_file` (write a
report), `json_reader` (read it), `frames` (its differences as a table), `many` (many tables),
`page` (the content of a page), `html` (how it is written), `repair`, `repairs` (a repair of a validation), `difflog`,
`switchover`, `tasks` (the page of any task), `history` (verdicts over time).
"""

from __future__ import annotations
