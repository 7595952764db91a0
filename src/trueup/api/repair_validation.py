"""`trueup.repair_validation`: repair the open errors of a validation, all tables together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trueup.api.diff import settings_of
from trueup.api.parameters import configuration
from trueup.api.repair import repair_request
from trueup.config.model import Config
from trueup.db.node import LOCK_TIMEOUT
from trueup.engine.memory import many_objects
from trueup.engine.progress import Progress
from trueup.report.repairs import RepairsResult
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.verbs.repair.plan_file import read_document
from trueup.verbs.repair.request import RepairRun, Replicate, Stale, table_of_keys
from trueup.verbs.repair.tasks import repair_run
from trueup.verbs.validate.to_repair import OpenErrors, open_errors


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
    request = repair_request(options)
    if not errors.tables:
        return RepairsResult(
            execute, (), validation=name, others=errors.others, is_running=errors.is_running, mode=request.mode_name
        )
    document = read_document(Path(request.plan)) if request.plan else None
    settings, spark = settings_of(config, {**options, "numeric": errors.numeric})
    nodes_of_it, of = (errors.source, errors.target), f"the validation {name}"
    whole = RepairRun(
        of,
        nodes_of_it,
        tuple(
            table_of_keys(
                TableRequest(
                    table.table,
                    nodes_of_it,
                    settings=settings,
                    expressions=config.expressions,
                    spark=spark,
                    key=table.key,
                    exclude_columns=table.left_out,
                ),
                of,
                table.keys,
            )
            for table in errors.tables
        ),
        settings,
        errors.validated,
        remarks=_remarks(errors, source_of_truth),
        validation=name,
        others=errors.others,
        is_running=errors.is_running,
    )
    with TaskStore(task_db, configured=config.tasks.task_db) as store, many_objects():
        return repair_run(request, whole, store=store, plan=document, progress=progress)


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
