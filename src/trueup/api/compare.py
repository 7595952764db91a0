"""`trueup.compare`: two frames of Spark, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueup.api.diff import diff
from trueup.config.model import Config
from trueup.engine.progress import Progress
from trueup.report.model import DiffResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare(
    left: DataFrame,
    right: DataFrame,
    *,
    key: Sequence[str] = (),
    columns: Sequence[str] = (),
    exclude_columns: Sequence[str] = (),
    filter: str = "",
    max_diff_rows: int | None = None,
    recheck: int | None = None,
    recheck_wait: float | None = None,
    report_dir: str | None = None,
    output: str | Sequence[str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> DiffResult:
    """Compare two frames of one Spark session, as the nodes `left` and `right`, and write a report.

    `key` names the columns that identify a row; without a key, rows are compared as a multiset. The other parameters,
    the result and the errors are those of `diff`.
    """
    return diff(
        "frames",
        nodes={"left": left, "right": right},
        key=key,
        columns=columns,
        exclude_columns=exclude_columns,
        filter=filter,
        max_diff_rows=max_diff_rows,
        recheck=recheck,
        recheck_wait=recheck_wait,
        report_dir=report_dir,
        output=output,
        config=config,
        task_db=task_db,
        progress=progress,
    )
