"""`trueup schema-diff`: compare definitions across nodes."""

from __future__ import annotations

import json
from typing import Any

import click

from trueup.cli.options import node_options, repeated, selected_nodes, shared
from trueup.cli.output import show


@click.command("schema-diff")
@node_options
@repeated("--schema", "NAME", "Compare only this schema; repeatable.", key="schemas")
@repeated(
    *("--tables", "PATTERN"),
    "Only tables and views whose names match, and their objects; patterns as for trueup diff.",
)
@shared("to_file", "quiet", "json", "task_db")
def schema_diff(**options: Any) -> int:
    """Compare the definitions of all objects across nodes.

    Tables, columns, keys and constraints, indexes, sequences (not their values), views, functions, triggers, policies,
    types and extensions. Not compared: grants, owners, comments, and objects of the system or of extensions.

    \b
    Examples:
      trueup schema-diff --cluster shop
      trueup schema-diff --cluster shop --schema public --schema sales
      trueup schema-diff --tables 'public.order*' --node a=postgresql://db1/shop --node b=postgresql://db2/shop
      trueup schema-diff --cluster shop --json --to differences.json

    Writes nothing on any node. Exit codes: 0 same, 1 different, 2 error or incomplete.
    """
    from trueup.api import schema as call
    from trueup.config.load import load
    from trueup.verbs.schema.text import result_text

    as_json, to, quiet = options.pop("as_json"), options.pop("to"), options.pop("quiet")
    nodes, inline = selected_nodes(options)
    config = load(options.pop("config"), nodes=inline)
    result = call.schema_diff(nodes=nodes, config=config, **options)
    text = result_text(result)
    if to is not None:
        from trueup.report.json_file import write_private

        write_private(to, (json.dumps(result.as_json()) if as_json else text) + "\n")
    else:
        show(result.as_json(), text, as_json=as_json, quiet=quiet)
    return result.exit_code
