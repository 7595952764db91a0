"""What a user may say to `spark.read.format("trueup")`: option names, their values, and the node they mean.

Spark writes the options of a source into its event log as they are (seen with temporary views). So a password in one
of them is refused: it comes from a variable, from libpq's own places, or with `trueup.register`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from trueup.config.address import parse
from trueup.config.load import load
from trueup.config.model import Node
from trueup.config.secrets import find_secrets
from trueup.config.values import Setting, interpolate, literal_part
from trueup.config.wording import problem, suggest
from trueup.db.names import parse_column_names
from trueup.errors import ConfigError

# The name of the node that an address without a name gets in messages.
ADDRESS = "address"
_PLACES = ("address", "node", "config", "table", "path")
_SNAPSHOT = r"[0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)*"
_PASSWORD_CURE = (
    "write ${VAR} for the password, use ~/.pgpass or PGPASSWORD on the driver, name a node of trueup.toml (option"
    " node), or give the address to trueup.register(spark, nodes={...})"
)


@dataclass(frozen=True)
class SourceOptions:
    """All options of one read; those with a default need not be given."""

    node: Node
    table: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    as_text: tuple[str, ...] = ()
    filter: str = ""
    partitions: int = 0
    rows_per_partition: int = 500_000
    # "": every partition sees its own moment; "true": one partition; else the name of an exported snapshot.
    snapshot: str = ""
    unfit: str = "error"
    batch_bytes: int = 4 * 1024 * 1024


OPTIONS = tuple(sorted({*_PLACES, *(field.name for field in fields(SourceOptions))}))


def parse_options(given: Mapping[str, str], nodes: Mapping[str, Node]) -> SourceOptions:
    """The options of a read, checked; `nodes` are those that were registered."""
    for name in given:
        if name.lower() not in OPTIONS:
            raise problem("", f'the source trueup has no option "{name}"', suggest(name, OPTIONS))
    options = {name.lower(): value for name, value in given.items()}
    table = options.get("table") or options.get("path", "")
    if not table or ("table" in options and "path" in options):
        raise ConfigError("which table?", cure='name one: .option("table", "public.orders"), or .load("public.orders")')
    snapshot = options.get("snapshot", "").strip()
    snapshot = {"true": "true", "false": ""}.get(snapshot.lower(), snapshot)
    if snapshot not in ("", "true") and not re.fullmatch(_SNAPSHOT, snapshot):
        cure = "Give true, false, or the id of a trueup.snapshot(...)."
        raise problem("option snapshot", "this is not the id of a snapshot", cure)
    unfit = options.get("unfit", "error").lower()
    if unfit not in ("error", "null"):
        raise problem("option unfit", "it must be error or null", "Give one of them.")
    read = SourceOptions(
        node=find_node(options, nodes),
        table=table,
        key=parse_column_names(options.get("key", "")),
        columns=parse_column_names(options.get("columns", "")),
        as_text=parse_column_names(options.get("as_text", "")),
        filter=options.get("filter", ""),
        partitions=_number(options, "partitions", 0),
        rows_per_partition=_number(options, "rows_per_partition", 1),
        snapshot=snapshot,
        unfit=unfit,
        batch_bytes=_number(options, "batch_bytes", 1024),
    )
    if read.snapshot == "true" and read.partitions > 1:
        cure = "Hold one: with trueup.snapshot(...) as held, and give its id: option snapshot=<held.id>."
        raise problem("option snapshot", "true reads in one partition; more need a snapshot that somebody holds", cure)
    return read


def find_node(options: Mapping[str, str], nodes: Mapping[str, Node]) -> Node:
    """The node that is meant: an address, or a name that was registered or stands in the configuration."""
    given, name = options.get("address", ""), options.get("node", "")
    if bool(given) == bool(name):
        raise ConfigError("which node?", cure="give one of the options address (a libpq URI) and node (a name)")
    if name:
        if name in nodes:
            return nodes[name]
        configured = load(options.get("config") or None)
        return configured.select(names=[name], at_least=1)[0]
    where = "option address"
    # A default inside of ${VAR:-default} would be seen too.
    if any(secret.strip("\0'\"") for secret in find_secrets(literal_part(given))):
        raise problem(where, "it holds a password, which Spark would write into its event log", _PASSWORD_CURE)
    conninfo = interpolate(given, os.environ, where)
    if wrong := parse(conninfo)[1]:
        cure = "Write postgresql://user@host:port/dbname, or libpq keywords: host=... dbname=... user=..."
        raise problem(where, f"this is not an address that libpq can read: {wrong}", cure)
    return Node(ADDRESS, conninfo)


def _number(options: Mapping[str, str], name: str, least: int) -> int:
    default = next(field.default for field in fields(SourceOptions) if field.name == name)
    if name not in options:
        return int(default)  # type: ignore[arg-type]
    number: int = Setting(f"option {name}", options[name], is_text=True).convert(int, {})
    if number < least:
        raise problem(f"option {name}", f"it must be at least {least}", "Give a larger number.")
    return number
