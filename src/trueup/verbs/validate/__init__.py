"""Validates changes while they are replicated: every row change is checked on the target soon after it is applied.

Reading order: `run` (the loop), `validator` (the steps of a round), `source` (a protocol: where changes come from),
`log` and `triggers` (its two implementations), `batch` (changes merged by key), `judge` (rows of both nodes compared),
`checks` (results stored), `pending` (when a row that differs is an error), `row_errors` (the errors), `proving` (rows
that never change, and certificates), `look` (whether tables and publications are what they were), `positions` (how far
everything is), `tables`, `plan`, `routes` and `option_checks` (what is compared), `change_tables` (add, remove,
restart), `sessions`, `owner` (which objects on the source are its own), `history` (failovers and restores), `recover`
(after an error), `meta` and `settings` (what is stored), `status`, `fence`, `to_repair` (errors for a repair),
`to_certificate` (what is proven), `on_spark` (the same as a Spark streaming job). The design is described in
docs/design/validate.md.
"""

from __future__ import annotations
