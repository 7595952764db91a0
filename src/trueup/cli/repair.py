"""`trueup rerun`, `trueup repair` and `trueup undo`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trueup.cli.options import (
    SECONDS,
    acting_options,
    choice,
    decorated,
    flag,
    inline_nodes,
    log_warnings,
    node_options_of_a_report,
    option,
    repeated,
    shared,
)
from trueup.cli.output import echo, show
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.config.model import Config
    from trueup.report.model import DiffResult, ManyResult
    from trueup.report.repair import RepairResult
    from trueup.report.repairs import RepairsResult

T = TypeVar("T", "DiffResult | ManyResult", "RepairResult | RepairsResult", "RepairsResult")


@click.command()
@click.argument("report", metavar="REPORT")
@node_options_of_a_report
@shared("allow_functions")
@acting_options
def rerun(report: str, **options: Any) -> int:
    """Compare the keys of REPORT again, and no other keys: which are resolved, which remain, which are new?

    \b
    Examples:
      trueup rerun 3f2a9c1e
      trueup rerun public_orders_diffs-20260701120000.json --json
      trueup rerun tables_diffs-3f2a9c1e/summary.json

    REPORT is the id of a diff task (its start is enough) or the path of a JSON report; of a diff of many tables, the
    keys of all its tables are compared. Read-only. Writes a new report in the same format. Exit codes: 0 all of these
    keys agree, 1 some differ, 2 failed.
    """
    from trueup.api.diff import rerun_any as call
    from trueup.cli.diff import result_text

    return _run(partial(call, report), options, result_text, lambda result: {})


_mode_options = decorated(
    option("--source-of-truth", "NODE", "Make the other nodes like this one.", ""),
    flag("--insert-only", "With --source-of-truth: only insert missing rows."),
    flag("--upsert-only", "With --source-of-truth: insert and update, but delete no rows."),
    flag("--bidirectional", "Insert missing rows in both directions; leave changed rows alone."),
    flag("--fix-nulls", "Fill NULL values from the other nodes, in both directions."),
    flag("--majority", "Make all nodes like more than half of them; needs three or more nodes."),
    option("--plan", "FILE", "Decide by a YAML plan with rules and rows.", ""),
    option("--write-plan", "FILE", "Write a commented plan to start from; repair nothing."),
    choice(
        *("--stale", ["skip", "apply"]),
        "Rows that changed since the report was written: leave and list them, or overwrite them.",
    ),
)

_write_options = decorated(
    flag("--execute", "Write. Without this option nothing is changed."),
    flag("--fire-triggers", "Let triggers and foreign keys fire; write in foreign-key order."),
    choice(
        *("--replicate", ["safe", "accept", "all"]),
        "Replication of what is written. safe: write under a replication origin, so that subscriptions with origin ="
        " none do not get it, and fail if a subscription would stop; accept: do not fail then; all: use no origin.",
    ),
    option("--lock-timeout", "S", "Seconds to wait for a lock of another session; 0: no limit.", 15.0, SECONDS),
    option("--undo", "FILE", "Path of the undo file. [default: a new file beside the report]", ""),
)

_validation_options = decorated(
    option("--validation", "NAME", "Repair the open errors of a validation, not a REPORT.", ""),
    option(
        *("--meta", "NODE"),
        "Node of the meta database, with --validation. [default: the node that has a validation of this name]",
        default="",
    ),
    repeated(
        *("--tables", "PATTERN"),
        "Only tables of a run or a validation whose names match; * and ? are wildcards. Separate patterns with commas.",
    ),
)


@click.command()
@click.argument("report", metavar="[REPORT]", required=False)
@_validation_options
@_mode_options
@_write_options
@node_options_of_a_report
@shared("allow_functions")
@acting_options
def repair(
    report: str | None, write_plan: str | None, validation: str, meta: str, tables: tuple[str, ...], **options: Any
) -> int:
    """Repair the rows that REPORT lists, or the open errors of a validation. A dry run unless --execute.

    \b
    Examples:
      trueup repair 3f2a9c1e --source-of-truth n1
      trueup repair 3f2a9c1e --source-of-truth n1 --execute
      trueup repair 3f2a9c1e --write-plan plan.yaml
      trueup repair 3f2a9c1e --plan plan.yaml --execute --undo before.gz
      trueup repair tables_diffs-3f2a9c1e/summary.json --source-of-truth n1 --tables 'public.order*' --execute
      trueup repair --validation shop
      trueup repair --validation shop --tables public.orders --execute

    REPORT is the id of a diff task (its start is enough) or the path of a JSON report; of a diff of many tables, all
    its tables are repaired. The rows are read again; no value is taken from the report. Each node is written in one
    transaction, completely or not at all, parents before the tables that refer to them. The old rows are kept in an
    undo file. At the end all keys are compared again; the verdict is REPAIRED only if they agree. With --validation,
    the target becomes like the source unless another mode is given. Exit codes: 0 all of these keys agree, 1 some
    differ (or would be written), 2 failed.
    """
    from trueup.api import repair as call
    from trueup.api.repair_validation import repair_validation

    _check_arguments(report, validation, meta=meta, write_plan=write_plan)
    if write_plan:
        config = _config(options)
        echo(call.write_plan(str(report), write_plan, tables=tables, config=config, task_db=options["task_db"]))
        return 0
    if report:
        return _run(partial(call.repair_any, report, tables=tables), options, _text, _failed)
    repair_open = partial(repair_validation, validation, meta=meta, tables=tables)
    return _run(repair_open, options, _text, _failed)


@click.command()
@click.argument("file", metavar="FILE")
@_write_options
@flag(
    "--other-database",
    "Accept another database than that of FILE, such as one restored from a dump; each row is still compared.",
)
@node_options_of_a_report
@acting_options
def undo(file: str, **options: Any) -> int:
    """Put back the rows that a repair replaced or deleted, from its undo FILE. A dry run unless --execute.

    \b
    Examples:
      trueup undo public_orders_undo-20260701120000.gz
      trueup undo public_orders_undo-20260701120000.gz --execute

    Rows that changed since the repair are left as they are and listed. FILE is for the databases that were repaired:
    others are refused. Exit codes: 0 all rows are as they were before the repair, 1 some are not (or would be written),
    2 failed.
    """
    from trueup.api import repair as call

    # An undo compares nothing again.
    for name in ("concurrency_factor", "max_connections", "recheck", "recheck_wait", "engine", "master", "remote"):
        del options[name]
    return _run(partial(call.undo_any, file), options, _text, _failed)


def _check_arguments(report: str | None, validation: str, *, meta: str, write_plan: str | None) -> None:
    """Raise ConfigError unless there is either a report or a validation, with options that fit it."""
    if bool(report) == bool(validation):
        problem = "REPORT and --validation exclude each other" if report else "no REPORT and no --validation is given"
        raise ConfigError(problem, cure="give REPORT, or --validation NAME")
    if report and meta:
        raise ConfigError("--meta needs --validation", cure="leave it out")
    if validation and write_plan:
        raise ConfigError("--write-plan needs a report", cure="run trueup diff and write the plan for its report")


def _text(result: RepairResult | RepairsResult) -> str:
    from trueup.report.repair import RepairResult, repair_text
    from trueup.report.repairs import run_text

    return repair_text(result) if isinstance(result, RepairResult) else run_text(result)


def _failed(result: RepairResult | RepairsResult) -> Mapping[str, str]:
    """Return the nodes and tables that failed, with the errors."""
    from trueup.report.repair import RepairResult

    if isinstance(result, RepairResult):
        return result.failed
    nodes = {f"{table.table} on {node}": error for table in result.tables for node, error in table.failed.items()}
    return {**result.failed, **nodes}


def _config(options: dict[str, Any]) -> Config:
    from trueup.config.load import load

    config = load(options.pop("config"), nodes=inline_nodes(options.pop("inline")))
    log_warnings(config)
    return config


def _run(
    call: Callable[..., T], options: dict[str, Any], text: Callable[[T], str], failed: Callable[[T], Mapping[str, str]]
) -> int:
    """Call the function and print its result as JSON or text; with --quiet print only what failed, to stderr."""
    from trueup.engine.progress import Shown

    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    config = _config(options)
    with Shown(quiet=quiet) as progress:
        result = call(config=config, progress=progress, **options)
    done = getattr(result, "written_text", "")
    show(result.as_json(), text(result), as_json=as_json, quiet=quiet, done=done)
    if quiet and not as_json:
        for place, error in failed(result).items():
            echo(f"trueup: {place}: {error}", err=True)
    return result.exit_code
