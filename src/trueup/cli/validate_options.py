"""The options of `trueup validate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from trueup.cli.options import ENGINES, SHARED, Decorator

F = TypeVar("F", bound=Callable[..., Any])

_SIZES = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}


class _Bytes(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper()
        digits = text.rstrip("KMGTB ")
        unit = text[len(digits) :].strip()
        if not digits.isdigit() or unit not in _SIZES:
            self.fail(f"{value!r} is not a size; write it like 64GB", param, ctx)
        return int(digits) * _SIZES[unit]


def _option(name: str, kind: Any, metavar: str, text: str) -> Decorator:
    return click.option(name, type=kind, metavar=metavar, help=text)


def _repeated(name: str, key: str, metavar: str, text: str) -> Decorator:
    return click.option(name, key, multiple=True, metavar=metavar, help=f"{text} Can be repeated.")


_META_TEXT = "Node of the meta database. [default: for a new validation its target, else the node that has it]"
_META = click.option("--meta", default="", metavar="NODE", help=_META_TEXT)


def with_options(*options: Decorator) -> Callable[[F], F]:
    """Add options to a command, and those that all commands of `trueup validate` have."""

    def decorate(command: F) -> F:
        for option in reversed((*options, _META, SHARED["config"], SHARED["node"], SHARED["json"])):
            command = option(command)
        return command

    return decorate


# Settings that `update` can change while the validation runs.
CHANGEABLE: tuple[Decorator, ...] = (
    click.option(
        "--mode",
        type=click.Choice(["full", "fast"]),
        help="full: compare all columns; fast: compare only which rows exist. [default: full]",
    ),
    _option("--check-interval", float, "S", "Seconds between two checks of a pending row. [default: 1]"),
    _option("--row-error-delay", float, "S", "Seconds after which a row that still differs is an error. [default: 30]"),
    _option(
        *("--initial-delay", float, "S"),
        "Seconds after which errors are reported even if the validation has not caught up with the syncer; 0: never."
        " [default: 0]",
    ),
    _option("--float-tolerance", float, "R", "Maximum relative difference of equal floats. [default: 0]"),
    _option("--max-rows-per-second", int, "N", "Maximum rows read per second and node; 0: no limit. [default: 0]"),
    _option(
        *("--max-retained-wal", _Bytes(), "SIZE"),
        "Drop the slot and stop when it retains more log on the source; 0: no limit. [default: 64GB]",
    ),
    _option(
        *("--sweep", float, "SHARE"),
        "Share of the time for comparing all rows of the tables block by block, 0 to 0.9. [default: 0]",
    ),
    _option("--cutover", str, "LSN", "Validate changes before this log position only, and stop when it is reached."),
)
START: tuple[Decorator, ...] = (
    click.option("--from", "source", metavar="NODE", help="Source node, where rows are changed."),
    click.option("--to", "target", metavar="NODE", help="Target node, where the syncer applies the changes."),
    _repeated("--tables", "tables", "T,…", "Only tables with these names, separated by commas; SCHEMA.* for a schema."),
    click.option("--name", default="", metavar="NAME", help="Name of the validation. [default: FROM_TO]"),
    _repeated("--map", "routes", "T=T2", "Map names of the source to names of the target: tables; also S.*=S2.*."),
    _repeated("--map-columns", "renames", "T.C=C2", "Column with another name on the target."),
    _repeated("--filter", "filters", "'T: SQL'", "Only rows that meet this condition are in the target."),
    _repeated("--constant", "constants", "T.C=V", "Column that only the target has, with this value in all rows."),
    _repeated("--exclude-columns", "exclude_columns", "T.C", "Do not compare these columns."),
    _option(
        *("--syncer", str, "KIND:NAME"),
        "What applies the changes: subscription:NAME, slot:NAME (on the source), sync:NAME, or lag:SECONDS."
        " [default: the subscriptions or the trueup sync that fill the tables]",
    ),
    _option("--lag", float, "S", "Same as --syncer lag:S."),
    click.option(
        "--source",
        "changes",
        type=click.Choice(["log", "tube", "changelog"]),
        help="Where changes are read: the log (needs wal_level=logical), a tube, or a change log filled by triggers."
        " [default: log]",
    ),
    _option("--tube", str, "NAME", "With --source tube: the tube that the tables are attached to."),
    _option("--publication", str, "NAME", "Existing publication to use. [default: create trueup_NAME]"),
    _option("--max-connections", int, "N", "Maximum connections per node, at least 3. [default: 6]"),
    click.option(
        "--engine",
        type=ENGINES,
        default="auto",
        show_default=True,
        help="Where the work runs: local (threads), spark (a stream), or auto (spark if a master or remote is set).",
    ),
    click.option("--detach", is_flag=True, help="Run in the background and write a log file."),
    click.option("--log", "log_file", metavar="FILE", help="Log file of --detach. [default: trueup-validate-NAME.log]"),
    SHARED["quiet"],
)
ALL = click.option("--all", "all_errors", is_flag=True, help="Apply to all errors.")
IDS = click.argument("ids", nargs=-1, type=int, metavar="[ID]...")
STATES = click.Choice(["new", "ignored", "resolved", "all"])
STATE = click.option("--state", type=STATES, default="new", show_default=True, help="Show errors in this state.")
LIMIT = click.option(
    *("--limit",),
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum entries to show.",
)
WATCH = click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
