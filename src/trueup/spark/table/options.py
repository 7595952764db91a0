"""The options of `spark.read.format("trueup")`; see `nodes` for those that select the node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from trueup.config.model import Node
from trueup.config.settings import ExpressionSettings
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.db.names import parse_column_names
from trueup.errors import ConfigError
from trueup.spark.nodes import allowed_expressions, find_node

_PLACES = ("address", "node", "config", "table", "path", "allow_functions")
_SNAPSHOT = r"[0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)*"


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read."""

    node: Node
    table: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    as_text: tuple[str, ...] = ()
    filter: str = ""
    # The functions that the filter may call: the option allow_functions, and the configuration.
    expressions: ExpressionSettings = field(default_factory=ExpressionSettings)
    partitions: int = 0
    rows_per_partition: int = 500_000
    # "": every partition reads the data of its own time; "true": one partition; else the id of an exported snapshot.
    snapshot: str = ""
    unfit: str = "error"
    batch_bytes: int = 4 * 1024 * 1024


OPTIONS = tuple(sorted({*_PLACES, *(field.name for field in fields(SourceOptions))} - {"expressions"}))


def parse_options(raw: Mapping[str, str], nodes: Mapping[str, Node]) -> SourceOptions:
    """Check the options of a read and return them; `nodes` are the registered nodes."""
    for name in raw:
        if name.lower() not in OPTIONS:
            raise problem("", f'the format trueup has no option "{name}"', suggest(name, OPTIONS))
    options = {name.lower(): value for name, value in raw.items()}
    table = options.get("table") or options.get("path", "")
    if not table or ("table" in options and "path" in options):
        raise ConfigError(
            "the table is missing, or set twice",
            cure='set it once: .option("table", "public.orders"), or .load("public.orders")',
        )
    snapshot = options.get("snapshot", "").strip()
    snapshot = {"true": "true", "false": ""}.get(snapshot.lower(), snapshot)
    if snapshot not in ("", "true") and not re.fullmatch(_SNAPSHOT, snapshot):
        cure = "Set true, false, or the id of a trueup.snapshot(...)."
        raise problem("option snapshot", "this is not the id of a snapshot", cure)
    unfit = options.get("unfit", "error").lower()
    if unfit not in ("error", "null"):
        raise problem("option unfit", "it must be error or null", "Set one of them.")
    parsed = SourceOptions(
        node=find_node(options, nodes),
        table=table,
        key=parse_column_names(options.get("key", "")),
        columns=parse_column_names(options.get("columns", "")),
        as_text=parse_column_names(options.get("as_text", "")),
        filter=options.get("filter", ""),
        expressions=allowed_expressions(options, nodes),
        partitions=_number(options, "partitions", 0),
        rows_per_partition=_number(options, "rows_per_partition", 1),
        snapshot=snapshot,
        unfit=unfit,
        batch_bytes=_number(options, "batch_bytes", 1024),
    )
    if parsed.snapshot == "true" and parsed.partitions > 1:
        cure = "Hold a snapshot: with trueup.snapshot(...) as held, and set the option snapshot=<held.id>."
        raise problem("option snapshot", "true reads one partition; more need a snapshot that is held open", cure)
    return parsed


def _number(options: Mapping[str, str], name: str, minimum: int) -> int:
    default = next(field.default for field in fields(SourceOptions) if field.name == name)
    if name not in options:
        return int(default)  # type: ignore[arg-type]
    number: int = Setting(f"option {name}", options[name], is_text=True).convert(int, {})
    if number < minimum:
        raise problem(f"option {name}", f"it must be at least {minimum}", "Set a larger number.")
    return number
