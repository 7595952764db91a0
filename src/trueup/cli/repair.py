"""`trueup rerun`, `trueup repair` and `trueup undo`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import F, acting_options, inline_nodes, log_warnings, node_options_of_a_report
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.config.model import Config
    from trueup.engine.progress import Progress
    from trueup.report.repair import RepairResult


@click.command()
@click.argument("report", metavar="REPORT")
@node_options_of_a_report
@acting_options
def rerun(report: str, **options: Any) -> int:
    """Look again at the keys of REPORT, and at no others: what is resolved, what remains, what is new?

    \b
    Examples:
      trueup rerun 3f2a9c1e
      trueup rerun public_orders_diffs-20260701120000.json --json

    REPORT is the id of a diff's task (the start is enough), or the path of its JSON report. Reads only. Writes a new
    report of the same form. Exit codes: 0 all of these keys agree, 1 some differ, 2 trouble.
    """
    from trueup.api.diff import rerun as call
    from trueup.report.text import summary

    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    config, given = _config(options, quiet=quiet)
    result = _shown(quiet, lambda progress: call(report, config=config, progress=progress, **given))
    if as_json:
        click.echo(json.dumps(result.as_json()))
    elif not quiet:
        click.echo(summary(result))
    return int(result.exit_code)


def _ways(command: F) -> F:
    """How a repair decides."""
    for option in reversed(
        (
            click.option("--source-of-truth", default="", metavar="NODE", help="The other nodes become like this one."),
            click.option("--insert-only", is_flag=True, help="With --source-of-truth: insert rows, change none."),
            click.option("--upsert-only", is_flag=True, help="With --source-of-truth: delete no rows."),
            click.option(
                "--bidirectional", is_flag=True, help="Insert rows that lack on either side; changed rows are left."
            ),
            click.option("--fix-nulls", is_flag=True, help="Fill NULL cells from the other side, both ways."),
            click.option("--majority", is_flag=True, help="What more than half of three or more nodes hold."),
            click.option("--plan", default="", metavar="FILE", help="A plan in YAML decides, row by row or by rules."),
            click.option("--write-plan", metavar="FILE", help="Write a commented plan to start from, and do nothing."),
            click.option(
                "--stale",
                type=click.Choice(["skip", "apply"]),
                default="skip",
                show_default=True,
                help="A row that is not as the report says: leave it and list it, or write over it.",
            ),
        )
    ):
        command = option(command)
    return command


def _writing(command: F) -> F:
    """How what changes data does so."""
    for option in reversed(
        (
            click.option("--execute", is_flag=True, help="Do it; without this nothing is changed."),
            click.option(
                "--fire-triggers",
                is_flag=True,
                help="Let triggers and foreign keys fire; rows go in foreign-key order.",
            ),
            click.option(
                "--undo",
                default="",
                metavar="FILE",
                help="Where the old rows go. [default: a new file beside the report]",
            ),
        )
    ):
        command = option(command)
    return command


def _of_validation(command: F) -> F:
    """Instead of a report: what a validation found."""
    for option in reversed(
        (
            click.option(
                "--validation", default="", metavar="NAME", help="Instead of REPORT: the open errors of a validation."
            ),
            click.option(
                "--meta", default="", metavar="NODE", help="Where it is kept; without it, the node that knows it."
            ),
            click.option(
                "--tables",
                multiple=True,
                metavar="PATTERN",
                help="With --validation: only tables that fit; names with * and ?, with commas, or given again.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.argument("report", metavar="[REPORT]", required=False)
@_of_validation
@_ways
@_writing
@node_options_of_a_report
@acting_options
def repair(
    report: str | None, write_plan: str | None, validation: str, meta: str, tables: tuple[str, ...], **options: Any
) -> int:
    """Mend the rows that REPORT names, or the open errors of a validation. A dry run unless --execute.

    \b
    Examples:
      trueup repair 3f2a9c1e --source-of-truth n1
      trueup repair 3f2a9c1e --source-of-truth n1 --execute
      trueup repair 3f2a9c1e --write-plan plan.yaml
      trueup repair 3f2a9c1e --plan plan.yaml --execute --undo before.gz
      trueup repair --validation shop
      trueup repair --validation shop --tables public.orders --execute

    The rows are read again, never taken from the report. Each node is written in one transaction, whole or not at all;
    the old rows are kept in an undo file first, and all keys are looked at again at the end: only then it says
    REPAIRED. With --validation the target becomes like the source, unless another way is given. Exit codes: 0 all of
    these keys agree, 1 some differ (or would be written), 2 trouble.
    """
    from trueup.api import repair as call

    _check_what(report, validation, meta=meta, tables=tables, write_plan=write_plan)
    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    config, given = _config(options, quiet=quiet)
    if not report:
        return _repair_validation(
            validation, {**given, "meta": meta, "tables": tables, "config": config}, quiet=quiet, as_json=as_json
        )
    if write_plan:
        click.echo(call.write_plan(report, write_plan, config=config, task_db=given["task_db"]))
        return 0
    result = _shown(quiet, lambda progress: call.repair(report, config=config, progress=progress, **given))
    return _tell(result, quiet=quiet, as_json=as_json)


@click.command()
@click.argument("file", metavar="FILE")
@_writing
@node_options_of_a_report
@acting_options
def undo(file: str, **options: Any) -> int:
    """Put back the rows that a repair wrote over, from its undo FILE. A dry run unless --execute.

    \b
    Examples:
      trueup undo public_orders_undo-20260701120000.gz
      trueup undo public_orders_undo-20260701120000.gz --execute

    Rows that somebody changed since the repair are left as they are, and listed. Exit codes: 0 all rows are as they
    were, 1 some are not (or would be written), 2 trouble.
    """
    from trueup.api import repair as call

    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    config, given = _config(options, quiet=quiet)
    names = ("task_db", "execute", "fire_triggers", "undo", "report_dir")
    kept = {name: given[name] for name in names if given[name] is not None}
    result = _shown(quiet, lambda progress: call.undo(file, config=config, progress=progress, **kept))
    return _tell(result, quiet=quiet, as_json=as_json)


def _check_what(
    report: str | None, validation: str, *, meta: str, tables: tuple[str, ...], write_plan: str | None
) -> None:
    """Either a report or a validation, and options that go with it."""
    if bool(report) == bool(validation):
        both = "a report and --validation were given" if report else "it is not said what to mend"
        raise ConfigError(both, cure="give REPORT, or --validation NAME")
    if report and (meta or tables):
        raise ConfigError("--meta and --tables go with --validation", cure="a report is of one table: leave them out")
    if validation and write_plan:
        raise ConfigError("--write-plan needs a report", cure="run trueup diff, and write the plan for its report")


def _repair_validation(name: str, given: dict[str, Any], *, quiet: bool, as_json: bool) -> int:
    from trueup.api.repair_validation import repair_validation
    from trueup.report.repairs import repairs_text

    result = _shown(quiet, lambda progress: repair_validation(name, progress=progress, **given))
    if as_json:
        click.echo(json.dumps(result.as_json()))
    elif not quiet:
        click.echo(repairs_text(result))
    else:
        # Even who wants no words is told what failed.
        failed = {
            **result.failed,
            **{f"{each.table} on {n}": e for each in result.tables for n, e in each.failed.items()},
        }
        for place, error in failed.items():
            click.echo(f"trueup: {place}: {error}", err=True)
    return int(result.exit_code)


def _config(options: dict[str, Any], *, quiet: bool) -> tuple[Config, dict[str, Any]]:
    from trueup.config.load import load

    given = dict(options)
    config = load(given.pop("config"), nodes=inline_nodes(given.pop("inline")))
    log_warnings(config)
    return config, given


def _shown(quiet: bool, work: Callable[[Progress], Any]) -> Any:
    from trueup.engine.progress import Shown

    with Shown(quiet=quiet) as progress:
        return work(progress)


def _tell(result: RepairResult, *, quiet: bool, as_json: bool) -> int:
    from trueup.report.repair import repair_text

    if as_json:
        click.echo(json.dumps(result.as_json()))
    elif not quiet:
        click.echo(repair_text(result))
    else:
        # Even who wants no words is told what failed.
        for node, error in result.failed.items():
            click.echo(f"trueup: {node}: {error}", err=True)
    return result.exit_code
