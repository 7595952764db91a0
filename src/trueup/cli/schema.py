"""`trueup schema-diff`: compare definitions across nodes."""

from __future__ import annotations

import json
from typing import Any

import click

from trueup.cli.options import choice, node_options, repeated, selected_nodes, shared


@click.command("schema-diff")
@node_options
@repeated("--schema", "NAME", "Compare only this schema; repeatable.", key="schemas")
@repeated(
    *("--tables", "PATTERN"),
    "Only tables and views whose names match, and their objects; patterns as for trueup diff.",
)
@choice("--output", ["text", "json"], "Format of the result.")
@shared("to_file", "quiet", "task_db")
def schema_diff(**options: Any) -> int:
    """Compare the definitions of all objects across nodes.

    Tables, columns, keys and constraints, indexes, sequences (not their values), views, functions, triggers, policies,
    types and extensions. Not compared: grants, owners, comments, and objects of the system or of extensions.

    \b
    Examples:
      trueup schema-diff --cluster shop
      trueup schema-diff --cluster shop --schema public --schema sales
      trueup schema-diff --tables 'public.order*' --node a=postgresql://db1/shop --node b=postgresql://db2/shop
      trueup schema-diff --cluster shop --output json --to differences.json

    Writes nothing on any node. Exit codes: 0 same, 1 different, 2 error or incomplete.
    """
    from trueup.api import schema as call
    from trueup.config.load import load
    from trueup.verbs.schema.text import result_text

    output, to, quiet = options.pop("output"), options.pop("to"), options.pop("quiet")
    nodes, inline = selected_nodes(options)
    config = load(options.pop("config"), nodes=inline)
    result = call.schema_diff(nodes=nodes, config=config, **options)
    text = json.dumps(result.as_json(), indent=1) if output == "json" else result_text(result)
    if to is not None:
        from trueup.report.json_file import write_private

        write_private(to, text + "\n")
    elif not quiet:
        click.echo(text)
    return result.exit_code
