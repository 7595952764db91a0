"""Options that several commands share: one table, so that a name means the same in every command."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trueup.config.settings import OUTPUTS, DiffSettings, SparkSettings
from trueup.config.values import interpolate
from trueup.db.names import parse_column_names
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.config.model import Config
    from trueup.verbs.difflog.model import DiffLogConfig

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

COUNT = click.IntRange(min=0)
POSITIVE = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0)
ENGINES = ("auto", "spark", "local")
_DEFAULTS = {field.name: field.default for field in (*fields(DiffSettings), *fields(SparkSettings))}


def _setting(
    name: str, kind: Any, text: str, metavar: str | None = None, *, section: str = "diff", option: str = ""
) -> Decorator:
    """Return an option that overrides a setting of the configuration."""
    default = _DEFAULTS[name]
    shown = f" [default: {default}]" if default not in ("", None, False) and "[default:" not in text else ""
    return click.option(
        "--" + (option or name.replace("_", "-")),
        name,
        type=kind,
        is_flag=kind is bool,
        default=None,
        metavar=metavar,
        help=f"{text}{shown} [env: TRUEUP__{section.upper()}__{name.upper()}]",
    )


def option(
    name: str, metavar: str | None, text: str, default: Any = None, kind: Any = None, key: str = ""
) -> Decorator:
    """Return an option; a default that is not empty is shown. `key` is the parameter's name, if it is another one."""
    names = [name, key] if key else [name]
    shown = default not in (None, "")
    return click.option(*names, type=kind, default=default, show_default=shown, metavar=metavar, help=text)


def flag(name: str, text: str, key: str = "") -> Decorator:
    """Return an option without a value."""
    return click.option(*([name, key] if key else [name]), is_flag=True, help=text)


def repeated(name: str, metavar: str, text: str, key: str = "") -> Decorator:
    """Return an option that may be repeated."""
    return click.option(*([name, key] if key else [name]), multiple=True, metavar=metavar, help=text)


def choice(name: str, choices: Sequence[str], text: str) -> Decorator:
    """Return an option with a fixed set of values, of which the first is the default."""
    return option(name, None, text, choices[0], click.Choice(choices))


def interval_option(default: float) -> Decorator:
    """Return the option --interval."""
    return option("--interval", "S", "Seconds between two polls.", default, click.FloatRange(min=0, min_open=True))


def timeout_option(default: float) -> Decorator:
    """Return the option --timeout."""
    return option("--timeout", "S", "Seconds to wait before giving up.", default, SECONDS)


# The options by name. An option for a setting has the name of the setting.
SHARED: dict[str, Decorator] = {
    # Which nodes.
    "config": option("--config", "FILE", "Configuration file. [env: TRUEUP_CONFIG]"),
    "cluster": option("--cluster", "NAME", "Use the nodes of this cluster of the configuration."),
    "nodes": option("--nodes", "N1,N2,…", "Nodes by name, in this order. [default: all nodes]", key="names"),
    "node": repeated(
        *("--node", "NAME=URI"),
        "Address of a node; ${VAR} is replaced by that environment variable. Repeat for each node.",
        key="inline",
    ),
    # Which tables, rows and columns.
    "schema": repeated("--schema", "NAME", "All tables of this schema. Repeat for more schemas.", key="schemas"),
    "tables": repeated(
        *("--tables", "PATTERN"),
        "Only tables whose names match; * and ? are wildcards. Separate patterns with commas, or repeat it.",
    ),
    "exclude_tables": repeated(
        "--exclude-tables", "PATTERN", "Exclude tables that match; as for --tables.", key="skip"
    ),
    "exclude_tables_file": option(
        "--exclude-tables-file", "FILE", "File with one pattern for --exclude-tables per line.", key="skip_file"
    ),
    "table_filter": option(
        *("--filter", "SQL", "Only rows that meet this condition. [env: TRUEUP__DIFF__TABLE_FILTER]", ""),
        key="table_filter",
    ),
    "allow_functions": repeated(
        *("--allow-functions", "NAME"),
        "Allow SQL expressions to call this function, such as public.f: it may write or run other code. Separate names"
        " with commas, or repeat it. [env: TRUEUP__EXPRESSIONS__ALLOW_FUNCTIONS]",
    ),
    "columns": option("--columns", "A,B,…", "Compare only these columns and the key. [env: TRUEUP__DIFF__COLUMNS]", ""),
    "exclude_columns": option(
        "--exclude-columns", "A,B,…", "Do not compare these columns. [env: TRUEUP__DIFF__EXCLUDE_COLUMNS]", ""
    ),
    "key": option(
        *("--key", "A,B,…"),
        "Columns that identify a row, for tables without a primary key or a usable unique index."
        " [env: TRUEUP__DIFF__KEY]",
        default="",
    ),
    "since_proof": option(
        *("--since-proof", "NAME"),
        "Read only blocks that changes touched since the certificate of this validation, if it holds; else all.",
        default="",
    ),
    "certify": option(
        *("--certify", "NAME"),
        "Record the verdict MATCH as the certificate of the table in this validation.",
        default="",
    ),
    "require_rows": click.option(
        "--require-rows/--no-require-rows",
        default=None,
        help="A run that finds no row on any node is INCOMPLETE (exit code 2). [default: only with a filter]",
    ),
    # How a table is compared.
    "block_size": _setting("block_size", int, "Rows per block.", "N"),
    "override_block_size": _setting("override_block_size", bool, "Allow a block size outside the limits."),
    "compare_unit_size": _setting("compare_unit_size", int, "Rows per unit when a differing block is split.", "N"),
    "max_diff_rows": _setting("max_diff_rows", int, "Stop after N differences per pair of nodes.", "N"),
    "recheck": _setting("recheck", int, "Number of times to re-check differences.", "N"),
    "recheck_wait": _setting("recheck_wait", float, "Seconds to wait before each re-check.", "S"),
    "no_snapshot": flag(
        "--no-snapshot",
        "Hold no snapshot: less load on the nodes, less exact while rows change. [env: TRUEUP__DIFF__SNAPSHOT=false]",
    ),
    "numeric": _setting(
        "numeric",
        click.Choice(["value", "representation"]),
        "Compare numerics by value (1.0 equals 1.00) or by representation.",
    ),
    "block_timeout": _setting(
        "block_timeout", float, "Seconds to hash a block on a node before it is hashed in pieces.", "S"
    ),
    # How much load a run may cause.
    "concurrency_factor": _setting(
        "concurrency_factor", float, "Concurrent tasks per core, from 0.0 to 4.0; 0: one task.", "F"
    ),
    "max_connections": _setting("max_connections", int, "Maximum connections per node, at least 2; 0: no limit.", "N"),
    "max_rows_per_second": _setting(
        "max_rows_per_second", int, "Maximum rows read per second and node; 0: no limit.", "N"
    ),
    "gentle": _setting(
        "gentle", bool, "For a live system: small queries one at a time, and pauses while a node is busy."
    ),
    "gentle_seconds": _setting("gentle_seconds", float, "With --gentle: target duration of a query, in seconds.", "S"),
    "max_lag": _setting("max_lag", float, "With --gentle: pause while replication lag exceeds S seconds.", "S"),
    "max_active_sessions": _setting(
        "max_active_sessions", int, "With --gentle: pause while more than N sessions are active.", "N"
    ),
    "max_lock_waits": _setting(
        "max_lock_waits", int, "With --gentle: pause while more than N sessions wait for locks.", "N"
    ),
    # Where the work runs.
    "engine": _setting(
        "engine",
        click.Choice(ENGINES),
        "Where the work runs: local (threads of this process), spark, or auto (threads, and Spark for work that lasts;"
        " spark if a master or remote is set).",
        section="spark",
    ),
    "master": _setting("master", str, "Spark master, such as spark://host:7077.", "URL", section="spark"),
    "remote": _setting("remote", str, "Spark Connect server, such as sc://host:15002.", "URL", section="spark"),
    # What is written and printed.
    "report_dir": _setting("report_dir", str, "Folder for reports. [default: the current folder]", "DIR"),
    "task_db": option("--task-db", "FILE", "Task store. [env: TRUEUP_TASKS_DB]"),
    "insecure": flag("--insecure", "Allow to send a password without TLS to a server on another machine."),
    "quiet": click.option("--quiet", "-q", is_flag=True, help="Print no progress and no summary."),
    "json": flag("--json", "Print the result as JSON.", key="as_json"),
    "to_file": option("--to", "FILE", "Write the output to this file.", kind=click.Path(path_type=Path)),
    "resume": option(
        "--resume", "TASK", "Continue an interrupted task, with its settings; the start of the task id is enough."
    ),
    "limit": option("--limit", "N", "Maximum entries to show.", 100, POSITIVE),
    "watch": flag("--watch", "Repeat until Ctrl-C."),
    "close_keys": option("--close-keys", "N", "Few changes are left if a round has at most N keys.", 1000, COUNT),
}


def shared(*names: str) -> Callable[[F], F]:
    """Return a decorator that adds options of the table, in this order."""
    return decorated(*(SHARED[name] for name in names))


def decorated(*options: Decorator) -> Callable[[F], F]:
    """Return a decorator that adds these options, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


resume_option = SHARED["resume"]
node_options = shared("config", "cluster", "nodes", "node")
many_options = shared("schema", "tables", "exclude_tables", "exclude_tables_file")
block_options = shared("block_size", "override_block_size")
compare_options = shared(
    *("concurrency_factor", "max_connections", "table_filter", "allow_functions", "columns", "exclude_columns", "key"),
    *("require_rows", "since_proof", "certify"),
    *("recheck", "recheck_wait", "gentle", "gentle_seconds", "max_rows_per_second", "max_lag"),
    *("max_active_sessions", "max_lock_waits", "no_snapshot", "numeric", "block_timeout"),
    *("engine", "master", "remote", "quiet", "json", "task_db"),
)
map_options = decorated(
    option(
        *("--map", "NAME|FILE"),
        "Names, filters and rules per node and column: a section [compare.NAME] of the configuration, or a TOML file.",
    ),
    repeated("--query", "NAME=SQL", "Compare a query of this PostgreSQL node instead of a table; can be repeated."),
    flag("--explain", "Print which columns are compared, as what and why, and read no rows."),
)
row_options = decorated(
    *(SHARED[name] for name in ("compare_unit_size", "max_diff_rows", "report_dir")),
    click.option(
        "--output",
        multiple=True,
        type=click.Choice(OUTPUTS),
        help="Format of the report; html and parquet (a table of the differences) are written in addition to json."
        " [default: json] [env: TRUEUP__DIFF__OUTPUT]",
    ),
)
node_options_of_a_report = shared("config", "node")
acting_options = shared(
    *("concurrency_factor", "max_connections", "recheck", "recheck_wait", "report_dir"),
    *("engine", "master", "remote", "quiet", "json", "task_db"),
)


_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}


class Bytes(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A size such as 64GB, as a number of bytes."""

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


class Seconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A time such as 7d, 12h or 90 (seconds), as a number of seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip().lower()
        digits = text.rstrip("smhd")
        unit = text[len(digits) :] or "s"
        if not digits.isdigit() or unit not in _TIMES:
            self.fail(f"{value!r} is not a time; write it like 7d, 12h, 30m or 90s", param, ctx)
        return float(int(digits) * _TIMES[unit])


def sync_options(source: str, target: str, *options: Decorator) -> Callable[[F], F]:
    """Return the options that name a sync (its two nodes, with these help texts, and its name), then `options`."""
    return decorated(
        click.option("--from", "source", required=True, metavar="NODE", help=source),
        click.option("--to", "target", required=True, metavar="NODE", help=target),
        option("--name", "NAME", "Name of the sync.", "main"),
        *(SHARED[name] for name in ("config", "node", "json")),
        *options,
    )


def log_warnings(config: Config | DiffLogConfig) -> None:
    """Log the warnings about the configuration."""
    for warning in config.warnings:
        logging.getLogger(__name__).warning("%s", warning)


def call_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as the Python API takes them."""
    arguments = dict(options)
    if arguments.pop("no_snapshot"):
        arguments["snapshot"] = False
    for name in ("columns", "exclude_columns", "key"):
        arguments[name] = parse_column_names(arguments[name])
    return arguments


def selected_nodes(options: dict[str, Any]) -> tuple[list[str] | None, dict[str, str]]:
    """Remove --nodes and --node from the options; return the names of the nodes to use, and name -> address.

    Without --nodes and --cluster, the nodes given by address are used.
    """
    names, inline = comma_separated(options.pop("names")), inline_nodes(options.pop("inline"))
    return names or ([] if options["cluster"] else list(inline)) or None, inline


def comma_separated(text: str | None) -> list[str]:
    """Return the words of a list with commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def inline_nodes(texts: Sequence[str]) -> dict[str, str]:
    """Return name -> address of the values of --node."""
    addresses = dict(_inline_node(text) for text in texts)
    if len(addresses) < len(texts):
        raise ConfigError("--node: the same name is used twice", cure="use a different name for each node")
    return addresses


def named_texts(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return name -> text of the values NAME=TEXT of an option."""
    pairs = {name.strip(): rest.strip() for name, _, rest in (text.partition("=") for text in texts)}
    if len(pairs) < len(texts) or not all(pairs) or not all(pairs.values()):
        raise ConfigError(f"{option}: expected NAME=TEXT, each name once", cure="see --help")
    return pairs


def _inline_node(text: str) -> tuple[str, str]:
    name, sign, address = text.partition("=")
    if not sign or not address or "://" in name:
        raise ConfigError(
            "--node: expected NAME=URI",
            cure="write --node n1=postgresql://user@host/dbname; keep passwords in ~/.pgpass",
        )
    # A password must not be in the shell history or the process list: --node 'n1=postgresql://u:${PW}@h/db'.
    return name.strip(), interpolate(address.strip(), os.environ, f"--node {name.strip()}")
