"""`trueup schema-diff`: compare definitions across nodes."""

from __future__ import annotations

import json
from typing import Any

import click

from trueup.cli.options import SHARED, inline_nodes, node_options


@click.command("schema-diff")
@node_options
@click.option("--schema", "schemas", multiple=True, metavar="NAME", help="Compare only this schema; repeatable.")
@click.option(
    "--tables",
    multiple=True,
    metavar="PATTERN",
    help="Only tables and views whose names match, and their objects; patterns as for trueup diff.",
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the result."
)
@SHARED["to_file"]
@SHARED["quiet"]
@SHARED["task_db"]
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
    inline = inline_nodes(options.pop("inline"))
    names = [name.strip() for name in (options.pop("names") or "").split(",") if name.strip()]
    config = load(options.pop("config"), nodes=inline)
    nodes = names or ([] if options["cluster"] else list(inline)) or None
    result = call.schema_diff(nodes=nodes, config=config, **options)
    text = json.dumps(result.as_json(), indent=1) if output == "json" else result_text(result)
    if to is not None:
        from trueup.report.json_file import write_private

        write_private(to, text + "\n")
    elif not quiet:
        click.echo(text)
    return result.exit_code
