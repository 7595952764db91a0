"""The options of `trueup validate`."""

from __future__ import annotations

from collections.abc import Callable

import click

from trueup.cli.options import SHARED, Bytes, Decorator, F, Seconds, choice, decorated, flag, option, repeated, shared

META = option(
    *("--meta", "NODE"),
    "Node of the meta database. [default: for a new validation its target, else the node that has it]",
    default="",
)


def with_options(*options: Decorator) -> Callable[[F], F]:
    """Add options to a command, and those that all commands of `trueup validate` have."""
    return decorated(*options, META, shared("config", "node", "json"))


def _repeated(name: str, key: str, metavar: str, text: str) -> Decorator:
    return repeated(name, metavar, f"{text} Can be repeated.", key)


# Settings that `update` can change while the validation runs.
CHANGEABLE: tuple[Decorator, ...] = (
    click.option(
        "--mode",
        type=click.Choice(["full", "fast"]),
        help="full: compare all columns; fast: compare only which rows exist. [default: full]",
    ),
    option("--check-interval", "S", "Seconds between two checks of a pending row. [default: 1]", kind=float),
    option(
        "--row-error-delay", "S", "Seconds after which a row that still differs is an error. [default: 30]", kind=float
    ),
    option(
        *("--initial-delay", "S"),
        "Seconds after which errors are reported even if the validation has not caught up with the syncer; 0: never."
        " [default: 0]",
        kind=float,
    ),
    option("--float-tolerance", "R", "Maximum relative difference of equal floats. [default: 0]", kind=float),
    option("--max-rows-per-second", "N", "Maximum rows read per second and node; 0: no limit. [default: 0]", kind=int),
    option(
        *("--max-retained-wal", "SIZE"),
        "While it runs: drop the slot and stop when it retains more log on the source; 0: no limit. [default: 64GB]",
        kind=Bytes(),
    ),
    option(
        *("--scrub-share", "SHARE"),
        "Share of the time for hashing all rows of the tables block by block, 0 to 0.9. [default: 0]",
        kind=float,
    ),
    option(
        *("--scrub-period", "TIME"),
        "With --scrub-share: hash each block again within this time; 0: without a pause. [default: 7d]",
        kind=Seconds(),
    ),
    option("--cutover", "LSN", "Validate changes before this log position only, and stop when it is reached."),
)
# Settings of tables, also for `add`.
OF_TABLES: tuple[Decorator, ...] = (
    _repeated("--map", "routes", "T=T2", "Map names of the source to names of the target: tables; also S.*=S2.*."),
    _repeated("--map-columns", "renames", "T.C=C2", "Column with another name on the target."),
    _repeated("--filter", "filters", "'T: SQL'", "Only rows that meet this condition are in the target."),
    SHARED["allow_functions"],
    _repeated("--constant", "constants", "T.C=V", "Column that only the target has, with this value in all rows."),
    _repeated("--exclude-columns", "exclude_columns", "T.C", "Do not compare these columns."),
)
START: tuple[Decorator, ...] = (
    option("--from", "NODE", "Source node, where rows are changed.", key="source"),
    option("--to", "NODE", "Target node, where the syncer applies the changes.", key="target"),
    _repeated("--tables", "tables", "T,…", "Only tables with these names, separated by commas; SCHEMA.* for a schema."),
    option("--name", "NAME", "Name of the validation. [default: FROM_TO]", ""),
    *OF_TABLES,
    option(
        *("--syncer", "KIND:NAME"),
        "What applies the changes: subscription:NAME, slot:NAME (on the source), sync:NAME, or lag:SECONDS."
        " [default: the subscriptions or the trueup sync that fill the tables]",
    ),
    option("--lag", "S", "Same as --syncer lag:S.", kind=float),
    click.option(
        "--source",
        "changes",
        type=click.Choice(["log", "tube", "changelog"]),
        help="Where changes are read: the log (needs wal_level=logical), a tube, or a change log filled by triggers."
        " [default: log]",
    ),
    click.option(
        "--both-sides",
        is_flag=True,
        default=None,
        help="Also read the changes of the target, and judge those that are not of the syncer; with --source changelog"
        " by triggers on the target.",
    ),
    option("--tube", "NAME", "With --source tube: the tube that the tables are attached to."),
    option("--publication", "NAME", "Existing publication to use. [default: create trueup_NAME_HASH]"),
    option("--max-connections", "N", "Maximum connections per node, at least 3. [default: 6]", kind=int),
    SHARED["engine"],
    flag("--detach", "Run in the background and write a log file."),
    option("--log", "FILE", "Log file of --detach. [default: trueup-validate-NAME.log]", key="log_file"),
    SHARED["quiet"],
)
ALL = flag("--all", "Apply to all errors.", key="all_errors")
TABLES = click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
IDS = click.argument("ids", nargs=-1, type=int, metavar="[ID]...")
STATE = choice("--state", ["new", "ignored", "resolved", "all"], "Show errors in this state.")
