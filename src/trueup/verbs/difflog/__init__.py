"""The signed version log: joins late side logs to versioned rows, as signed rows that collapse in ClickHouse.

Reading order: `run` (the path of a run), `model`, `config` and `checks` (the configuration), `chunks` (the inputs of a
run), `input_checks`, `value_checks` and `prepare` (the checks before a run is recorded), the package `steps` (one step
on DataFrames), `frame` (all steps of a run in one DataFrame), `widen` (the values of the fast supplier in it), `stored`
(its rows on disk), `counts` (of its rows), `outputs` (the outputs of a run), `spans` (the states after each step),
`state` (the state table), `layout` (which of its files a run writes), `checksums` (of its files),
`manifest` (a run on disk), `abandon` (removes an unfinished run), `basis` and `record` (the settings and the id of a
log), `result` (the result of a run), `clickhouse`, `resume` and `mark` (the target table), `migrate` and
`migration_plan` (changed settings), `vacuum` (frees disk space).
"""

from __future__ import annotations
