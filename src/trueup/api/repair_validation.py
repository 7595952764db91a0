"""`trueup.repair_validation`: repair the open errors of a validation, table by table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trueup.api.diff import settings_of
from trueup.api.parameters import configuration
from trueup.api.repair import repair_keys, repair_request
from trueup.config.model import Config
from trueup.db.node import LOCK_TIMEOUT
from trueup.engine.progress import Progress
from trueup.errors import ConfigError, Interrupted, TrueupError
from trueup.report.repair import RepairResult
from trueup.report.repairs import RepairsResult
from trueup.verbs.repair.request import Replicate, Stale
from trueup.verbs.validate.to_repair import OpenErrors, TableErrors, open_errors


def repair_validation(
    name: str,
    *,
    meta: str = "",
    tables: Sequence[str] = (),
    source_of_truth: str = "",
    insert_only: bool = False,
    upsert_only: bool = False,
    bidirectional: bool = False,
    fix_nulls: bool = False,
    majority: bool = False,
    plan: str = "",
    allow_functions: Sequence[str] = (),
    stale: Stale = "skip",
    fire_triggers: bool = False,
    replicate: Replicate = "safe",
    lock_timeout: float = LOCK_TIMEOUT,
    execute: bool = False,
    undo: str = "",
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    concurrency_factor: float | None = None,
    max_connections: int | None = None,
    recheck: int | None = None,
    recheck_wait: float | None = None,
    report_dir: str | None = None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
) -> RepairsResult:
    """Repair the open errors of a validation; a dry run unless `execute=True`.

    The target becomes like the source unless another mode is given. `meta` names the node that stores the validation,
    `tables` limits the repair to some of its tables. The other options are those of `repair`.
    """
    options = locals()
    config = configuration(config, nodes, allow_functions=allow_functions)
    errors = open_errors(config, name, tables, meta_node=meta)
    if not (source_of_truth or bidirectional or fix_nulls or majority or plan):
        source_of_truth = options["source_of_truth"] = errors.source.name
    if undo and len(errors.tables) > 1:
        raise ConfigError(
            f"--undo names one file, but each of the {len(errors.tables)} tables with errors needs an undo file",
            cure="give a folder with --report-dir instead, or select one table with --tables",
        )
    request = repair_request(options)
    settings, spark = settings_of(config, {**options, "numeric": errors.numeric})

    def repair_table(table: TableErrors) -> RepairResult:
        return repair_keys(
            table.table,
            table.keys,
            (errors.source, errors.target),
            request,
            of=f"the validation {name}",
            config=config,
            settings=settings,
            spark=spark,
            key=table.key,
            exclude_columns=table.left_out,
            task_db=task_db,
            progress=progress,
        )

    results, failed = _repair_tables(errors, repair_table, execute=execute)
    return RepairsResult(
        validation=name,
        executed=execute,
        tables=tuple(results.values()),
        failed=failed,
        others=errors.others,
        is_running=errors.is_running,
        remarks=_remarks(errors, source_of_truth),
    )


def _repair_tables(
    errors: OpenErrors, repair_table: Callable[[TableErrors], RepairResult], *, execute: bool
) -> tuple[dict[str, RepairResult], dict[str, str]]:
    """Repair one table after the other, parents first; a table that fails does not stop the others."""
    results: dict[str, RepairResult] = {}
    failed: dict[str, str] = {}

    def attempt(table: TableErrors) -> None:
        try:
            results[table.table] = repair_table(table)
        except Interrupted:
            raise
        except TrueupError as error:
            if isinstance(error, ConfigError) and not results:
                # Wrong options are wrong for every table.
                raise
            failed[table.table] = f"{error}{f' ({error.cure})' if error.cure else ''}"
            results.pop(table.table, None)

    for table in errors.tables:
        attempt(table)
    # A row that another row refers to could not be deleted; by now the other row may be deleted.
    again = [table for table in errors.tables if execute and _wrote_nothing(results.get(table.table))]
    if len(again) < len(errors.tables):
        for table in reversed(again):
            attempt(table)
    return results, failed


def _wrote_nothing(result: RepairResult | None) -> bool:
    """Return whether a repair failed on all nodes; if it wrote a node, its undo file must stay in the result."""
    if result is None or result.verdict != "FAILED":
        return False
    return not any(any(counts.values()) for counts in result.written.values())


def _remarks(errors: OpenErrors, source_of_truth: str) -> tuple[str, ...]:
    remarks = []
    source = errors.source.name
    if source_of_truth != source:
        remarks.append(f"rows may be written on {source}, and the replication copies what is written there")
    if errors.tables and not errors.is_running:
        remarks.append(
            "the validation is not running, so its errors may be outdated: make sure that the replication has caught"
            " up, because a row that still has to arrive would be written twice"
        )
    return tuple(remarks)
