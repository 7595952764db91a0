"""Which tables a run over many is about: those that fit on any node, the largest first."""

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
    """A table to compare: its name, the nodes that have it, and how large it is on the node where it is largest."""

    table: str
    nodes: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Choice:
    """All tables that fit: those to compare, and those left out by name."""

    tables: tuple[Candidate, ...]
    skipped: tuple[str, ...]
    remarks: tuple[str, ...]


def choose_tables(controls: Sequence[Control], patterns: Patterns) -> Choice:
    """What the patterns mean on these nodes; a pattern that means nothing anywhere is an error."""

    def ask(control: Control) -> list[Listed]:
        try:
            return list_tables(control.connection)
        except Exception as error:
            raise error_from_server(error, control.node) from None

    found = together(controls, ask)
    seen = {
        control.node.name: {(t.schema, t.name): t for t in tables}
        for control, tables in zip(controls, found, strict=True)
    }
    fitting = {name for tables in seen.values() for name, table in tables.items() if _fits(table, patterns.take)}
    for pattern in patterns.take:
        if not any(pattern.matches(*name) for name in fitting):
            raise ConfigError(
                f"no node has a table that fits {pattern.text}",
                cure="check the name: write schema.table, with * for any; views and foreign tables cannot be compared",
            )
    skipped = {name for name in fitting if patterns.skips(*name)}
    if fitting == skipped:
        raise ConfigError(
            "every table that fits is skipped", cure="there is nothing to compare: check --exclude-tables"
        )
    unused = [each.text for each in patterns.skip if not any(each.matches(*name) for name in fitting)]
    return Choice(
        tuple(sorted((_candidate(name, seen) for name in fitting - skipped), key=lambda it: (-it.bytes, it.table))),
        tuple(sorted(display_name(*name) for name in skipped)),
        tuple(f"--exclude-tables {text} fits no table" for text in unused),
    )


def _fits(table: Listed, take: Sequence[Pattern]) -> bool:
    """Whether a table is meant: parts of a partitioned one are compared with it, unless they are named."""
    meant = [pattern for pattern in take if pattern.matches(table.schema, table.name)]
    if any(pattern.names_one for pattern in meant):
        return True
    plain = table.kind in ("r", "p") and not table.is_partition
    return plain and any(pattern.names_schema or not table.is_ours for pattern in meant)


def _candidate(name: tuple[str, str], seen: Mapping[str, Mapping[tuple[str, str], Listed]]) -> Candidate:
    having = {node: tables[name] for node, tables in seen.items() if name in tables}
    return Candidate(display_name(*name), tuple(having), max(table.bytes for table in having.values()))
