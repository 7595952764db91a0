"""The open errors of a validation, mended table by table: each as a report is, and one answer for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trueup.api.repair import repair_keys
from trueup.config.load import load
from trueup.config.model import Config
from trueup.errors import ConfigError, Interrupted, TrueupError
from trueup.report.repair import RepairResult
from trueup.report.repairs import RepairsResult

if TYPE_CHECKING:
    from trueup.engine.progress import Progress
    from trueup.verbs.validate.to_repair import OpenErrors, TableErrors

_OTHER_WAYS = ("bidirectional", "fix_nulls", "majority", "plan")


def repair_validation(
    name: str,
    *,
    meta: str = "",
    tables: Sequence[str] = (),
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RepairsResult:
    """Mend the open errors of a validation; a dry run unless `execute=True`.

    The target becomes like the source, unless another way to decide is given. `meta` names the node that keeps the
    validation, `tables` which of its tables are meant. All other options are those of `repair`.
    """
    from trueup.verbs.validate.to_repair import open_errors

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    found = open_errors(config, name, tables, meta_node=meta or "")
    if not any(options.get(way) for way in _OTHER_WAYS):
        options["source_of_truth"] = options.get("source_of_truth") or found.source.name
    if options.get("undo") and len(found.tables) > 1:
        raise ConfigError(
            f"--undo names one file, and there are errors in {len(found.tables)} tables: each has an undo file",
            cure="name a folder for them with --report-dir, or one table with --tables",
        )
    work = _Work(found, {**options, "numeric": found.numeric, "config": config, "task_db": task_db}, progress)
    work.run()
    return RepairsResult(
        validation=name,
        executed=bool(options.get("execute")),
        tables=tuple(work.done.values()),
        failed=work.failed,
        others=found.others,
        is_running=found.is_running,
        remarks=_remarks(found, options),
    )


class _Work:
    """The tables one after the other; what failed is not forgotten, and keeps no other table from being mended."""

    def __init__(self, found: OpenErrors, options: Mapping[str, Any], progress: Progress | None) -> None:
        self.found = found
        self.options = options
        self.progress = progress
        self.done: dict[str, RepairResult] = {}
        self.failed: dict[str, str] = {}

    def run(self) -> None:
        """Tables that others refer to first: rows that lack must be there before rows that refer to them."""
        for rows in self.found.tables:
            self._mend(rows)
        if not self.options.get("execute"):
            return
        # A row that is still referred to could not go; by now the rows that refer to it may be gone.
        again = [rows for rows in self.found.tables if self._could_not_write(rows.table)]
        if len(again) < len(self.found.tables):
            for rows in reversed(again):
                self._mend(rows)

    def _could_not_write(self, table: str) -> bool:
        result = self.done.get(table)
        if result is None or result.verdict != "FAILED":
            return False
        # Where a node was written, the way back is in this result: no other may take its place.
        return not any(any(counts.values()) for counts in result.written.values())

    def _mend(self, rows: TableErrors) -> None:
        nodes = (self.found.source, self.found.target)
        try:
            self.done[rows.table] = repair_keys(
                rows.table, rows.keys, nodes, of=f"the validation {self.found.name}", key=rows.key,
                exclude_columns=rows.left_out, progress=self.progress, **self.options,
            )  # fmt: skip
        except Interrupted:
            raise
        except TrueupError as error:
            if isinstance(error, ConfigError) and not self.done:
                # What was asked for makes no sense, and would not for another table.
                raise
            self.failed[rows.table] = f"{error}{f' ({error.cure})' if error.cure else ''}"
            self.done.pop(rows.table, None)


def _remarks(found: OpenErrors, options: Mapping[str, Any]) -> tuple[str, ...]:
    remarks = []
    source = found.source.name
    if options.get("source_of_truth") != source:
        remarks.append(f"rows may be written on {source}: what is written there is replicated too")
    if found.tables and not found.is_running:
        remarks.append(
            "the validation does not run, so its errors may be old: see that what replicates has caught up, or a row"
            " that is on its way is written twice"
        )
    return tuple(remarks)
