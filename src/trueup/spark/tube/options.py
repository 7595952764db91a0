"""Options of `spark.readStream.format("trueup_tube")`; the node is named as for the format `trueup`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trueup.config.model import Node
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.errors import ConfigError
from trueup.spark.nodes import find_node

_PLACES = ("address", "node", "config", "tube", "path")


@dataclass(frozen=True)
class StreamOptions:
    """The options of a stream."""

    node: Node
    tube: str
    schema: str = "tube"
    # Partitions of the tube; empty: all.
    partitions: tuple[int, ...] = ()
    # Limits per batch.
    most_pods: int = 2_000
    most_keys: int = 50_000
    most_bytes: int = 32 * 1024 * 1024
    # Maximum number of Spark tasks per batch.
    tasks: int = 8
    # Seconds to wait for a partition that another worker holds.
    wait: float = 0.0


OPTIONS = tuple(sorted({*_PLACES, *(field.name for field in fields(StreamOptions))}))


def parse_options(values: Mapping[str, str], nodes: Mapping[str, Node]) -> StreamOptions:
    """Parse and check the options; `nodes` are the registered nodes."""
    for name in values:
        if name.lower() not in OPTIONS:
            raise problem("", f'the format trueup_tube has no option "{name}"', suggest(name, OPTIONS))
    options = {name.lower(): value for name, value in values.items()}
    tube = options.get("tube") or options.get("path", "")
    if not tube or ("tube" in options and "path" in options):
        raise ConfigError("the tube is not specified", cure='use .option("tube", "search") or .load("search")')
    return StreamOptions(
        node=find_node(options, nodes),
        tube=tube,
        schema=options.get("schema", "tube"),
        partitions=_partitions(options.get("partitions", "")),
        most_pods=_number(options, "most_pods", int, 1),
        most_keys=_number(options, "most_keys", int, 1),
        most_bytes=_number(options, "most_bytes", int, 1024),
        tasks=_number(options, "tasks", int, 1),
        wait=_number(options, "wait", float, 0),
    )


def _partitions(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise problem("option partitions", "must be numbers", "Write them as 0,2.") from None


def _number(options: Mapping[str, str], name: str, kind: type, minimum: int) -> Any:
    default = next(field.default for field in fields(StreamOptions) if field.name == name)
    if name not in options:
        return default
    number = Setting(f"option {name}", options[name], is_text=True).convert(kind, {})
    if number < minimum:
        raise problem(f"option {name}", f"must be at least {minimum}", "Use a larger number.")
    return number
