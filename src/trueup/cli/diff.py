"""`trueup diff` and `trueup check`."""

from __future__ import annotations

import json
from typing import Any

import click

from trueup.cli.options import block_options, call_arguments, compare_options, node_options, resume_option, row_options
from trueup.errors import ConfigError


@click.command()
@click.argument("table", required=False)
@resume_option
@node_options
@block_options
@row_options
@compare_options
def diff(table: str | None, **options: Any) -> int:
    """Compare TABLE on two or more nodes, down to the rows that differ.

    \b
    Examples:
      trueup diff public.customers --cluster acctg --nodes n1,n2,n3
      trueup diff orders --node a=postgresql://db1/shop --node b=postgresql://db2/shop
      trueup diff orders --table-filter "placed_at < '2026-01-01'" --json
      trueup diff orders --cluster shop --gentle --max-rows-per-second 200000
      trueup diff --resume 3f9a

    Reads only: nothing is written on any node. Exit codes as diff(1).
    """
    return _run("diff", table, options)


@click.command()
@click.argument("table", required=False)
@resume_option
@node_options
@block_options
@compare_options
def check(table: str | None, **options: Any) -> int:
    """Is TABLE in sync? Quick: digests only, no rows, no report.

    \b
    Examples:
      trueup check public.customers --cluster acctg
      trueup check orders --cluster shop --nodes n1,n2 --json

    Reads only: nothing is written on any node. Exit codes as diff(1).
    """
    return _run("check", table, options)


def _run(verb: str, table: str | None, options: dict[str, Any]) -> int:
    from trueup.config import load
    from trueup.diff import call
    from trueup.engine.progress import Shown
    from trueup.report.text import summary

    quiet, as_json, task = options.pop("quiet"), options.pop("as_json"), options.pop("resume")
    if (table is None) == (task is None):
        raise ConfigError("give a table, or --resume and a task", cure=f"see trueup {verb} --help")
    given = call_arguments(options)
    inline = given.pop("inline")
    names = given.pop("names")
    config = load(given.pop("config"), nodes=inline)
    if not quiet:
        for warning in config.warnings:
            click.echo(f"trueup: {warning}", err=True)
    # Nodes given by address are the ones to compare, unless names or a cluster say otherwise.
    chosen = names or ([] if given["cluster"] else list(inline)) or None
    with Shown(quiet=quiet) as progress:
        if task is not None:
            result = call.resume(task, config=config, task_db=given["task_db"], progress=progress)
        else:
            verbs = {"diff": call.diff, "check": call.check}
            result = verbs[verb](str(table), config=config, nodes=chosen, progress=progress, **given)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    elif not quiet:
        click.echo(summary(result))
    return result.exit_code
