"""`trueup accept`: record differences that are known and wanted, list them, end them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from trueup.cli.options import flag, option, repeated, shared
from trueup.cli.output import echo, echo_json, show
from trueup.errors import ConfigError


@click.command()
@click.argument("report", metavar="[REPORT]", required=False)
@option("--reason", "TEXT", "Why the differences are wanted.")
@option("--until", "DATE", "The acceptance expires after this day, or at this time (UTC). [default: never]", "")
@option("--by", "NAME", "Who accepts or revokes. [default: the user of this process]", "")
@repeated("--only", "KEY", "Accept only the difference with this key; a key of several columns is a JSON list.")
@flag("--list", "List the accepted differences that are in effect.", key="is_list")
@flag("--with-ended", "With --list: also those that have expired or were revoked.")
@option("--revoke", "ID", "End an acceptance; the start of its id is enough.")
@shared("config", "json", "task_db")
def accept(report: str | None, **options: Any) -> None:
    """Accept the differences that REPORT lists (a path, or the id of a diff): later runs report them apart.

    \b
    Examples:
      trueup accept 3f9a --reason "test account, only on n1" --until 2027-06-30
      trueup accept public_orders_diffs-20250722120353.json --reason "known loss of 2024" --by ana --only 4711
      trueup accept --list
      trueup accept --revoke 5c1d20aa

    Exactly these rows are accepted, with their values on both nodes: a row that changes again is a new difference. A
    run in which only accepted differences are found has the verdict ACCEPTED and the exit code 0.
    """
    from trueup.api.accept import accept as call
    from trueup.api.accept import acceptances, revoke
    from trueup.store import times
    from trueup.verbs.accept.text import accept_text, acceptances_text

    where = {"config": options["config"], "task_db": options["task_db"]}
    as_json = options["as_json"]
    if [report is not None, options["is_list"], options["revoke"] is not None].count(True) != 1:
        raise ConfigError("expected exactly one of: REPORT, --list, --revoke ID", cure="see trueup accept --help")
    if report is None and (options["reason"] or options["until"] or options["only"]):
        raise ConfigError("--reason, --until and --only need a report", cure="name the report")
    if options["with_ended"] and not options["is_list"]:
        raise ConfigError("--with-ended needs --list", cure="add --list")
    if report is not None:
        if not options["reason"]:
            raise ConfigError("--reason is missing", cure="say why the differences are wanted")
        wanted = {name: options[name] for name in ("reason", "until", "by", "only")}
        result = call(report, **wanted, **where)
        show(result.as_json(), accept_text(result), as_json=as_json)
    elif options["is_list"]:
        listed = acceptances(all=options["with_ended"], **where)
        now = times.now()
        if as_json:
            echo_json([{**asdict(each), "state": each.state(now)} for each in listed])
        elif listed:
            echo(acceptances_text(listed, now))
        else:
            echo("no accepted differences", err=True)
    else:
        ended = revoke(str(options["revoke"]), by=options["by"], **where)
        text = f"revoked: acceptance {ended.short_id} of {ended.table_name} ({ended.reason})"
        show(asdict(ended), text, as_json=as_json)
