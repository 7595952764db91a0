"""`trueup diff` and `trueup check`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trueup.cli.metrics import SHORT, publish
from trueup.cli.options import (
    block_options,
    call_arguments,
    compare_options,
    log_warnings,
    many_options,
    map_options,
    named_texts,
    node_options,
    resume_option,
    row_options,
    selected_nodes,
)
from trueup.cli.output import show
from trueup.errors import ConfigError, TrueupError

if TYPE_CHECKING:
    from trueup.report.model import DiffResult, ManyResult

# Options that have an effect together with --resume.
_WITH_RESUME = (
    *("resume", "config", "inline", "task_db", "quiet", "as_json", "verbose", "log_level", "log_format"),
    *("metrics_textfile", "metrics_push"),
)


@click.command()
@click.argument("table", required=False)
@many_options
@resume_option
@node_options
@block_options
@row_options
@compare_options
@map_options
@SHORT
def diff(table: str | None, **options: Any) -> int:
    """Compare TABLE, or many tables, on two or more nodes, down to the rows that differ.

    \b
    Examples:
      trueup diff public.customers --cluster acctg --nodes n1,n2,n3
      trueup diff orders --node a=postgresql://db1/shop --node b=postgresql://db2/shop
      trueup diff orders --filter "placed_at < '2026-01-01'" --json
      trueup diff orders --cluster shop --gentle --max-rows-per-second 200000
      trueup diff --schema public --exclude-tables 'public.tmp_*' --cluster shop
      trueup diff --tables 'sales.*,public.order_??' --cluster shop --output html
      trueup diff public.orders --node pg=postgresql://db1/shop --node lake=delta:/warehouse/orders
      trueup diff --map orders --cluster shop --explain
      trueup diff --resume 3f9a

    Nothing is written on any node. Exit codes: 0 equal, 1 different, 2 incomplete or error, 130 interrupted.
    """
    return _run("diff", table, options)


@click.command()
@click.argument("table", required=False)
@many_options
@resume_option
@node_options
@block_options
@compare_options
@map_options
@SHORT
def check(table: str | None, **options: Any) -> int:
    """Check whether TABLE, or many tables, are equal on all nodes, by digests: reads no rows, writes no report.

    \b
    Examples:
      trueup check public.customers --cluster acctg
      trueup check orders --cluster shop --nodes n1,n2 --json
      trueup check --schema public --cluster shop

    Nothing is written on any node. Exit codes: 0 equal, 1 different, 2 incomplete or error, 130 interrupted.
    """
    return _run("check", table, options)


def _run(verb: str, table: str | None, options: dict[str, Any]) -> int:
    from trueup.api import diff as call
    from trueup.config.load import load
    from trueup.engine.progress import Shown

    result: DiffResult | ManyResult
    quiet, as_json, task = options.pop("quiet"), options.pop("as_json"), options.pop("resume")
    explained = options.pop("explain")
    metrics = {name: options.pop(name) for name in ("metrics_textfile", "metrics_push")}
    many = {name: options.pop(name) for name in ("schemas", "tables")}
    many |= {"exclude_tables": options.pop("skip"), "exclude_tables_file": options.pop("skip_file")}
    is_many = bool(many["schemas"] or many["tables"])
    if is_many and (explained or options["map"] is not None):
        cure = "name the table instead of --schema and --tables"
        raise ConfigError("--explain and --map are for one table", cure=cure)
    options["query"] = named_texts(options["query"], "--query") or None
    if is_many and options["query"]:
        raise ConfigError("--query is for one table", cure="leave out --schema and --tables")
    if table is None and (options["map"] is not None or options["query"]):
        # The mapping names the table, or every node has a query.
        table = ""
    if [table is not None, is_many, task is not None].count(True) != 1:
        cure = f"see trueup {verb} --help"
        raise ConfigError("expected exactly one of: a table, --schema or --tables, --resume TASK", cure=cure)
    if task is not None:
        _refuse_ignored_options()
    if not is_many and (many["exclude_tables"] or many["exclude_tables_file"]):
        raise ConfigError("--exclude-tables needs --schema or --tables", cure="add --schema or --tables")
    arguments = call_arguments(options)
    arguments["filter"] = arguments.pop("table_filter")
    nodes, inline = selected_nodes(arguments)
    config = load(arguments.pop("config"), nodes=inline)
    log_warnings(config)
    with _resumed_with(inline), Shown(quiet=quiet) as progress:
        if task is not None:
            result = call.resume_any(task, config=config, task_db=arguments["task_db"], progress=progress)
        elif explained:
            explanation = call.explain(str(table), config=config, nodes=nodes, **arguments)
            show(explanation.as_json(), explanation.as_text(), as_json=as_json, quiet=quiet)
            return 0
        elif is_many:
            del arguments["map"], arguments["query"]
            compare_many = call.diff_many if verb == "diff" else call.check_many
            result = compare_many(config=config, nodes=nodes, progress=progress, **many, **arguments)
        else:
            compare = call.diff if verb == "diff" else call.check
            result = compare(str(table), config=config, nodes=nodes, progress=progress, **arguments)
    show(result.as_json(), _with_nodes(result_text(result), inline), as_json=as_json, quiet=quiet)
    publish(metrics, config, arguments["task_db"], is_success=result.exit_code in (0, 1))
    return result.exit_code


@contextmanager
def _resumed_with(inline: Mapping[str, str]) -> Iterator[None]:
    """Add the options --node of this command to the command that continues it, in the cure of an error."""
    try:
        yield
    except TrueupError as error:
        error.cure = _with_nodes(error.cure, inline)
        raise


def _with_nodes(text: str, inline: Mapping[str, str]) -> str:
    """Return a text in which commands with --resume name the nodes given by address; addresses may have passwords."""
    nodes = "".join(f" --node {name}=…" for name in inline)
    return re.sub(r"trueup \w+ --resume \w+", lambda command: command[0] + nodes, text)


def _refuse_ignored_options() -> None:
    """Raise ConfigError for options in the command that --resume would ignore: a task has its own settings."""
    context = click.get_current_context()
    given = [
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name not in _WITH_RESUME
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise ConfigError(
            f"--resume continues with the settings of the task: {', '.join(given)} cannot be changed",
            cure="leave these options out, or start a new run without --resume",
        )


def result_text(result: DiffResult | ManyResult) -> str:
    """Return the result of one table or of many as text."""
    from trueup.report.many import many_text, summary_of
    from trueup.report.model import ManyResult
    from trueup.report.text import summary

    return many_text(summary_of(result), result.task_id) if isinstance(result, ManyResult) else summary(result)
