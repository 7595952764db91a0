"""`trueup history`: the verdicts of tables over time."""

from __future__ import annotations

from dataclasses import asdict

import click

from trueup.cli.options import COUNT, option, shared
from trueup.cli.output import echo, echo_json, show, show_cut
from trueup.cli.tasks import open_store
from trueup.errors import ConfigError


@click.command()
@click.argument("table", metavar="[TABLE]", required=False)
@option("--limit", "N", "Maximum entries to show, the newest first; 0: all.", 20, COUNT)
@shared("json", "task_db")
def history(table: str | None, limit: int, as_json: bool, task_db: str | None) -> None:
    """Show the last verdict and the last proof of every table, or the runs of one TABLE.

    \b
    Examples:
      trueup history
      trueup history public.orders
      trueup history public.orders --limit 0 --json

    A proof is a run that compared all rows and columns and found them equal; its age counts from the start of the run.
    The sparkline shows the differences of the last runs, the oldest first. Times are UTC.
    """
    from trueup.report.history import TREND, runs_text, states_text

    with open_store(task_db) as store:
        path = store.path
        if table is None:
            states = store.states()
            if as_json:
                echo_json([asdict(state) for state in states])
            elif states:
                runs = [
                    run
                    for last in (state.run for state in states)
                    for run in store.runs(last.table_name, cluster=last.cluster_name, nodes=last.nodes, limit=TREND)
                ]
                echo(states_text([asdict(state) for state in states], [asdict(run) for run in runs]))
            else:
                echo(f"no table was compared yet in {path}", err=True)
            return
        listed = [asdict(run) for name in _names(table) for run in store.runs(name)]
    if not listed:
        raise ConfigError(
            f"table {table} has no history in {path}", cure="list the tables that have one with: trueup history"
        )
    shown = listed[:limit] if limit else listed
    show(shown, runs_text(shown), as_json=as_json)
    if len(shown) < len(listed):
        show_cut(len(shown), len(listed), "runs", option="--limit 0 for all")


def _names(table: str) -> list[str]:
    """Return the names in the history that a name may mean."""
    from trueup.db.names import display_name, table_spellings

    return [display_name(*parts) for parts in table_spellings(table)]
