"""The signed version diff log: late side logs patched into versioned rows, collapsing in ClickHouse.

Reading order: `run` (the whole path), `model`, `config`, `checks` and `template` (what is configured), `join` (raw logs
to chunks), `chunks` (the inputs of a run), `merge` (the operation `+`), `blocks` (the six blocks), `step` (one step on
DataFrames), `frame` (all steps of a run in one frame), `widen` (the columns glued back), `outputs` (what a run writes),
`state` (the Delta table), `manifest` (a run on disk), `clickhouse` and `resume` (the target), `prove` (the
proof), `call` (the Python API).
"""

from __future__ import annotations

from trueup.verbs.difflog.model import Rule, StepOptions
from trueup.verbs.difflog.step import step

__all__ = ["Rule", "StepOptions", "step"]
