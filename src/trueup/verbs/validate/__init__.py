"""Validates changes while something replicates them: every row change is checked on the target soon after it happened.

Reading order: `run` (the whole path), `validator` (the steps of a round), `log` and `tubes` (where changes come from),
`batch` (changes merged by key), `look` and `judge` (rows of both sides), `pending` (when a row that differs is an
error), `findings` (errors), `to_repair` (errors for a repair), `syncer` (how far the target is), `tables`, `plan`
and `routes` (which columns, where), `sweep`, `meta` (what is kept), `status`, `fence`, `spark` (the same as a streaming
job), `call` (the public functions).
"""

from __future__ import annotations
