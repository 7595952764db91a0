"""`trueup doctor`: check whether a run would work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.environment import stray_variables
from trueup.cli.options import COUNT, comma_separated, flag, node_options, option, selected_nodes, shared
from trueup.cli.output import echo, show

if TYPE_CHECKING:
    from trueup.verbs.doctor.model import Finding

_COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@node_options
@shared("engine", "master", "remote", "concurrency_factor", "max_connections", "report_dir", "task_db")
@flag("--no-spark", "Do not start Spark, which takes some seconds.")
@option("--stats-days", "N", "Warn about statistics older than N days, if rows changed since.", 30, COUNT)
@option(
    *("--switchover", "FROM,TO"),
    "Also check whether applications can be moved from the first of these nodes to the second.",
    default="",
)
@shared("quiet", "json")
@click.pass_context
def doctor(ctx: click.Context, /, tables: tuple[str, ...], **options: Any) -> int:
    """Check whether a run would work: one line per check, with its cure.

    Checks the configuration, this machine (Python, Java, Spark, disk, task store), each node (connection, version,
    settings, clock), the nodes together (encoding, collation, row hash) and each TABLE (privileges, key, statistics).
    Changes nothing.

    \b
    Examples:
      trueup doctor
      trueup doctor public.orders public.items --cluster shop
      trueup doctor --no-spark --quiet
      trueup doctor --switchover n1,n2 --no-spark
      trueup doctor orders --node a=postgresql://db1/shop --node b=postgresql://db2/shop --json

    Exit codes: 0 no check failed (there may be warnings), 2 a check failed.
    """
    from trueup.api import doctor as call
    from trueup.verbs.doctor.text import last_line

    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    nodes, inline = selected_nodes(options)

    def tell(finding: Finding) -> None:
        if not as_json and not (quiet and finding.level == "OK"):
            _tell(finding)

    diagnosis = call.doctor(
        *tables,
        nodes=nodes,
        addresses=inline,
        spark=not options.pop("no_spark"),
        switchover=comma_separated(options.pop("switchover")),
        strays=stray_variables(ctx.find_root()),
        tell=tell,
        **options,
    )
    show(diagnosis.as_json(), last_line(diagnosis), as_json=as_json)
    return diagnosis.exit_code


def _tell(finding: Finding) -> None:
    from trueup.verbs.doctor.text import line

    coloured = 0 if os.environ.get("NO_COLOR") else len(finding.level)
    echo(line(finding), colour=_COLOURS[finding.level], coloured=coloured)
