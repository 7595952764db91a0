"""Choose the tables of a run over many: those that match on any node, the largest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.db.catalog import Listed, list_tables
from trueup.db.names import display_name
from trueup.db.node import error_from_server
from trueup.db.patterns import Pattern, Patterns
from trueup.db.snapshot import Control
from trueup.errors import ConfigError
from trueup.task.together import together


@dataclass(frozen=True)
class Candidate:
    """A table to compare: its name, the nodes that have it and that do not, and its largest size."""

    table: str
    nodes: tuple[str, ...]
    missing_on: tuple[str, ...]
    pages: int


@dataclass(frozen=True)
class Choice:
    """The tables that match: those to compare, and those that are excluded."""

    tables: tuple[Candidate, ...]
    skipped: tuple[str, ...]
    remarks: tuple[str, ...]


def choose_tables(controls: Sequence[Control], patterns: Patterns) -> Choice:
    """Return the tables that match the patterns on these nodes; raise if a pattern matches no table."""

    def ask(control: Control) -> list[Listed]:
        try:
            return list_tables(control.connection)
        except Exception as error:
            raise error_from_server(error, control.node) from None

    by_node = {
        control.node.name: {(table.schema, table.name): table for table in tables}
        for control, tables in zip(controls, together(controls, ask), strict=True)
    }
    matching = {name for tables in by_node.values() for name, table in tables.items() if _matches(table, patterns.take)}
    for pattern in patterns.take:
        if not any(pattern.matches(*name) for name in matching):
            raise ConfigError(
                f"no node has a table that matches {pattern.text}",
                cure="check the name (schema.table, with * as wildcard); views and foreign tables cannot be compared",
            )
    skipped = {name for name in matching if patterns.skips(*name)}
    if matching == skipped:
        raise ConfigError("every table that matches is excluded", cure="check --exclude-tables")
    unused = [pattern.text for pattern in patterns.skip if not any(pattern.matches(*name) for name in matching)]
    return Choice(
        tuple(sorted((_candidate(name, by_node) for name in matching - skipped), key=lambda it: (-it.pages, it.table))),
        tuple(sorted(display_name(*name) for name in skipped)),
        tuple(f"--exclude-tables {text} matches no table" for text in unused),
    )


def _matches(table: Listed, take: Sequence[Pattern]) -> bool:
    """Whether a table matches: a partition is compared with its parent, unless it is named."""
    patterns = [pattern for pattern in take if pattern.matches(table.schema, table.name)]
    if any(pattern.names_one for pattern in patterns):
        return True
    plain = table.kind in ("r", "p") and not table.is_partition
    return plain and any(pattern.names_schema or not table.is_ours for pattern in patterns)


def _candidate(name: tuple[str, str], by_node: Mapping[str, Mapping[tuple[str, str], Listed]]) -> Candidate:
    tables = {node: tables[name] for node, tables in by_node.items() if name in tables}
    missing_on = tuple(node for node in by_node if node not in tables)
    return Candidate(display_name(*name), tuple(tables), missing_on, max(table.pages for table in tables.values()))
