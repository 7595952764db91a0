"""Options that several verbs share, and how they become what the Python API takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click

from trueup.config.settings import DiffSettings, SparkSettings
from trueup.config.values import interpolate
from trueup.db.names import parse_column_names
from trueup.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in (*fields(DiffSettings), *fields(SparkSettings))}


def _setting(name: str, kind: Any, text: str, *, section: str = "diff", metavar: str | None = None) -> Callable[[F], F]:
    """An option for a setting of the configuration: not given, the configuration's value holds."""
    default = _DEFAULTS[name]
    shown = f" [default: {default}]" if default not in ("", None) else ""
    variable = f"TRUEUP__{section.upper()}__{name.upper()}"
    return click.option(
        "--" + name.replace("_", "-"),
        name,
        type=kind,
        default=None,
        metavar=metavar,
        help=f"{text}{shown} [env: {variable}]",
    )


# Read by `main`, which shows the errors; named here so that it may stand behind the verb too.
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    help="Show where an error came from. [env: TRUEUP_VERBOSE]",
)


def node_options(command: F) -> F:
    """Which nodes."""
    for option in reversed(
        (
            click.option("--config", "config", metavar="FILE", help="The configuration file. [env: TRUEUP_CONFIG]"),
            click.option("--cluster", metavar="NAME", help="The nodes of this cluster of the configuration."),
            click.option(
                "--nodes", "names", metavar="N1,N2,…", help="Nodes by name, in this order; without it all of them."
            ),
            click.option(
                "--node",
                "inline",
                multiple=True,
                metavar="NAME=URI",
                help="A node by address, ${VAR} in it filled in; give it twice or more.",
            ),
        )
    ):
        command = option(command)
    return command


def block_options(command: F) -> F:
    """How a table is cut."""
    for option in reversed(
        (
            _setting("block_size", int, "Rows of a block.", metavar="N"),
            click.option(
                "--override-block-size",
                is_flag=True,
                default=None,
                help="Allow a block size outside the limits. [env: TRUEUP__DIFF__OVERRIDE_BLOCK_SIZE]",
            ),
        )
    ):
        command = option(command)
    return command


def compare_options(command: F) -> F:
    """How a table is compared."""
    for option in reversed(
        (
            _setting("concurrency_factor", float, "Blocks at once, as a share of the cores: 0.0 to 4.0.", metavar="F"),
            _setting("max_connections", int, "Connections to each node at most, 2 or more; 0: no limit.", metavar="N"),
            click.option(
                "--table-filter",
                default="",
                metavar="SQL",
                help="Compare only the rows that meet this condition. [env: TRUEUP__DIFF__TABLE_FILTER]",
            ),
            click.option(
                "--columns",
                default="",
                metavar="A,B,…",
                help="Compare only these columns, and the key. [env: TRUEUP__DIFF__COLUMNS]",
            ),
            click.option(
                "--exclude-columns",
                default="",
                metavar="A,B,…",
                help="Compare all columns but these. [env: TRUEUP__DIFF__EXCLUDE_COLUMNS]",
            ),
            click.option(
                "--key",
                default="",
                metavar="A,B,…",
                help="Columns that name a row, where no key is declared. [env: TRUEUP__DIFF__KEY]",
            ),
            _setting("recheck", int, "How often to look again at what differs.", metavar="N"),
            _setting("recheck_wait", float, "Seconds between two looks at what differs.", metavar="S"),
            click.option(
                "--gentle",
                is_flag=True,
                default=None,
                help="For a live system: small queries one at a time, and pauses while a node is busy."
                " [env: TRUEUP__DIFF__GENTLE]",
            ),
            _setting("gentle_seconds", float, "Seconds that a query of a gentle run should take.", metavar="S"),
            _setting("max_rows_per_second", int, "Rows read on each node at most; 0: no limit.", metavar="N"),
            _setting("max_lag", float, "Gentle: wait while replication is more seconds behind.", metavar="S"),
            _setting("max_active_sessions", int, "Gentle: wait while more sessions are active.", metavar="N"),
            _setting("max_lock_waits", int, "Gentle: wait while more sessions wait for locks.", metavar="N"),
            click.option(
                "--no-snapshot",
                is_flag=True,
                help="Hold no snapshot: gentler, and less exact under writes. [env: TRUEUP__DIFF__SNAPSHOT=false]",
            ),
            _setting(
                "numeric",
                click.Choice(["value", "representation"]),
                "Numerics are equal by value (1.0 is 1.00) or by representation.",
            ),
            _setting(
                "block_timeout", float, "Seconds for a block on a node before it is hashed in pieces.", metavar="S"
            ),
            _setting(
                "engine",
                click.Choice(["auto", "spark", "local"]),
                "Where the work runs: auto decides by the size of the table.",
                section="spark",
            ),
            _setting("master", str, "Spark master, such as spark://host:7077.", section="spark", metavar="URL"),
            _setting("remote", str, "Spark Connect server, such as sc://host:15002.", section="spark", metavar="URL"),
            click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
            click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
            click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
            verbose_option,
        )
    ):
        command = option(command)
    return command


def many_options(command: F) -> F:
    """Which tables, where it is not one."""
    for option in reversed(
        (
            click.option(
                "--schema",
                "schemas",
                multiple=True,
                metavar="NAME",
                help="All tables of this schema; may be given again.",
            ),
            click.option(
                "--tables",
                multiple=True,
                metavar="PATTERN",
                help="All tables that fit: names with * and ?, with commas, or given again.",
            ),
            click.option(
                "--skip", multiple=True, metavar="PATTERN", help="Of these, leave out what fits; as for --tables."
            ),
            click.option("--skip-file", default=None, metavar="FILE", help="A file with such a pattern a line."),
        )
    ):
        command = option(command)
    return command


def resume_option(command: F) -> F:
    """Going on with what was stopped."""
    return click.option(
        "--resume",
        metavar="TASK",
        default=None,
        help="Go on with this task (the start of its id), which was interrupted or killed; its settings hold.",
    )(command)


def row_options(command: F) -> F:
    """What concerns rows, and so only the diff."""
    for option in reversed(
        (
            _setting(
                "compare_unit_size", int, "Rows of the parts that a block which differs is split into.", metavar="N"
            ),
            _setting("max_diff_rows", int, "Stop after so many differences of a pair of nodes.", metavar="N"),
            _setting("report_dir", str, "Folder for the report. [default: the current one]", metavar="DIR"),
            click.option(
                "--output",
                multiple=True,
                type=click.Choice(["json", "html"]),
                help="html: a page to look at, besides the JSON report. May be given for both."
                " [default: json] [env: TRUEUP__DIFF__OUTPUT]",
            ),
        )
    ):
        command = option(command)
    return command


def doctor_options(command: F) -> F:
    """What decides what a run would need, and how the doctor tells."""
    for option in reversed(
        (
            _setting("engine", click.Choice(["auto", "spark", "local"]), "As for diff.", section="spark"),
            _setting("master", str, "Spark master, such as spark://host:7077.", section="spark", metavar="URL"),
            _setting("remote", str, "Spark Connect server, such as sc://host:15002.", section="spark", metavar="URL"),
            _setting("concurrency_factor", float, "Blocks at once, as a share of the cores: 0.0 to 4.0.", metavar="F"),
            _setting("max_connections", int, "Connections to each node at most, 2 or more; 0: no limit.", metavar="N"),
            _setting("report_dir", str, "Folder for reports. [default: the current one]", metavar="DIR"),
            click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
            click.option("--no-spark", is_flag=True, help="Do not start Spark, which takes some seconds."),
            click.option(
                "--stats-days",
                type=click.IntRange(min=0),
                default=30,
                show_default=True,
                metavar="N",
                help="Statistics are old after so many days, if rows changed since.",
            ),
            click.option(
                "--switchover",
                default="",
                metavar="FROM,TO",
                help="Also: could applications be moved from one of these nodes to the other?",
            ),
            click.option("--quiet", "-q", is_flag=True, help="Only warnings and failures, and the last line."),
            click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object."),
            verbose_option,
        )
    ):
        command = option(command)
    return command


def node_options_of_a_report(command: F) -> F:
    """Where the nodes are whose names a report knows."""
    for option in reversed(
        (
            click.option("--config", "config", metavar="FILE", help="The configuration file. [env: TRUEUP_CONFIG]"),
            click.option(
                "--node",
                "inline",
                multiple=True,
                metavar="NAME=URI",
                help="The address of a node of the report, ${VAR} in it filled in; give it for each of them.",
            ),
        )
    ):
        command = option(command)
    return command


def acting_options(command: F) -> F:
    """How the keys of a report are read, and where what is found goes."""
    for option in reversed(
        (
            _setting("concurrency_factor", float, "Tasks at once, as a share of the cores: 0.0 to 4.0.", metavar="F"),
            _setting("max_connections", int, "Connections to each node at most, 2 or more; 0: no limit.", metavar="N"),
            _setting("recheck", int, "How often to look again at what differs.", metavar="N"),
            _setting("recheck_wait", float, "Seconds to wait before each look.", metavar="S"),
            _setting("report_dir", str, "Folder for the report. [default: the current one]", metavar="DIR"),
            _setting(
                "engine",
                click.Choice(["auto", "spark", "local"]),
                "Where the work runs: auto decides by the number of keys.",
                section="spark",
            ),
            _setting("master", str, "Spark master, such as spark://host:7077.", section="spark", metavar="URL"),
            _setting("remote", str, "Spark Connect server, such as sc://host:15002.", section="spark", metavar="URL"),
            click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
            click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
            click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
            verbose_option,
        )
    ):
        command = option(command)
    return command


def call_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the Python API takes them."""
    given = dict(options)
    inline = inline_nodes(given.pop("inline"))
    names = [name.strip() for name in (given.pop("names") or "").split(",") if name.strip()]
    if given.pop("no_snapshot"):
        given["snapshot"] = False
    for name in ("columns", "exclude_columns", "key"):
        given[name] = parse_column_names(given[name])
    return {**given, "inline": inline, "names": names}


def inline_nodes(texts: Sequence[str]) -> dict[str, str]:
    """What --node said: name to address."""
    inline = dict(_inline_node(text) for text in texts)
    if len(inline) < len(texts):
        raise ConfigError("--node gives the same name twice", cure="give every node its own name")
    return inline


def _inline_node(text: str) -> tuple[str, str]:
    name, sign, address = text.partition("=")
    if not sign or not address or "://" in name:
        raise ConfigError(
            "--node wants NAME=URI", cure="write it as --node n1=postgresql://user@host/dbname (passwords: ~/.pgpass)"
        )
    # A shell's history and the list of processes are no places for a password: --node 'n1=postgresql://u:${PW}@h/db'.
    return name.strip(), interpolate(address.strip(), os.environ, f"--node {name.strip()}")


def sync_options(source: str, target: str, *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Which sync: its two nodes, in these words, and its name; and the options of the verb itself."""
    ends: tuple[Callable[[Any], Any], ...] = (
        click.option("--from", "source", required=True, metavar="NODE", help=source),
        click.option("--to", "target", required=True, metavar="NODE", help=target),
        click.option("--name", default="main", show_default=True, metavar="NAME", help="What the sync is called."),
        click.option("--config", metavar="FILE", help="The configuration file. [env: TRUEUP_CONFIG]"),
        click.option(
            "--node", "inline", multiple=True, metavar="NAME=URI", help="A node by address, ${VAR} in it filled in."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
        verbose_option,
    )

    def give(command: F) -> F:
        for option in reversed((*ends, *options)):
            command = option(command)
        return command

    return give
