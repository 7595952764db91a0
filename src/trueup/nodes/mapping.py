"""The mapping of a comparison: names, filters and rules, from `[compare.NAME]` of trueup.toml or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trueup.config.sources import read_file
from trueup.config.wording import suggest
from trueup.errors import ConfigError
from trueup.rows.rules import Rule, rule_from


@dataclass(frozen=True)
class NodeMap:
    """What is different on one node: the table or query, a condition, and the columns there."""

    table: str = ""
    filter: str = ""
    # A query of a PostgreSQL node, instead of a table.
    query: str = ""
    # Name of a compared column -> name on the node, and -> expression in the SQL of the node.
    columns: Mapping[str, str] = field(default_factory=dict)
    expressions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CompareMap:
    """The mapping of one comparison."""

    table: str = ""
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    nodes: Mapping[str, NodeMap] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)

    def node(self, name: str) -> NodeMap:
        """Return what is different on a node."""
        return self.nodes.get(name) or NodeMap()

    def selected(self) -> tuple[str, ...]:
        """Return the nodes of which not all rows are read, or a query instead of the table, in words."""
        filters = [f"only rows of {name} with: {node.filter}" for name, node in self.nodes.items() if node.filter]
        return (
            *filters,
            *(f"a query instead of the table on {name}" for name, node in self.nodes.items() if node.query),
        )

    def instead(self, left_out: Sequence[str]) -> tuple[str, ...]:
        """Return the expressions that are compared instead of columns, in words; not those of columns left out."""
        return tuple(
            f"instead of {column} of {name}: {expression}"
            for name, node in self.nodes.items()
            for column, expression in node.expressions.items()
            if column not in left_out
        )

    def with_queries(self, queries: Mapping[str, str]) -> CompareMap:
        """Return the mapping with the queries of nodes, which replace those of the mapping."""
        nodes = {name: replace(self.node(name), query=text, table="") for name, text in queries.items()}
        return replace(self, nodes={**self.nodes, **nodes})

    def check_nodes(self, names: Sequence[str]) -> None:
        """Raise ConfigError if the mapping names other nodes than those that are compared."""
        for name in self.nodes:
            if name not in names:
                raise ConfigError(
                    f"the mapping names the node {name}, which is not compared", cure=suggest(name, names)
                )


def load_map(name: str, config: Path | None) -> CompareMap:
    """Return the mapping of a section `[compare.NAME]` of the configuration, else of a file with such keys.

    Raises ConfigError for a section or file that does not exist, and for anything that is wrong in it.
    """
    sections = (read_file(config) if config else {}).get("compare", {})
    if isinstance(sections, dict) and name in sections:
        return parse_map(sections[name], f"{config}: compare.{name}")
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"--map: there is no section [compare.{name}] in the configuration, and no file {name}",
            cure=suggest(name, tuple(sections)) if sections else "write the section, or name a TOML file",
        )
    tables = read_file(path)
    # A file may have the section as well, or its keys at the top.
    inner = tables.get("compare", tables)
    if "compare" in tables:
        if len(inner) != 1:
            raise ConfigError(f"{path} has several sections [compare.NAME]", cure="use --config, and --map NAME")
        inner = next(iter(inner.values()))
    return parse_map(inner, str(path))


def parse_map(values: Any, where: str = "map") -> CompareMap:
    """Return the mapping of a table of the configuration, or of a dictionary of a program."""
    values = _table(values, where, CompareMap)
    nodes = {
        name: NodeMap(**_node(node, f"{where}.nodes.{name}"))
        for name, node in _mapping(values.get("nodes", {}), f"{where}.nodes").items()
    }
    rules = {}
    for column, rule in _mapping(values.get("rules", {}), f"{where}.rules").items():
        try:
            rules[column] = rule_from(_mapping(rule, f"{where}.rules.{column}"))
        except ValueError as error:
            raise ConfigError(f"{where}.rules.{column}: {error}", cure="see docs/cross-engine.md") from None
    lists = {name: _names(values.get(name, ()), f"{where}.{name}") for name in ("key", "columns", "exclude_columns")}
    return CompareMap(_text(values.get("table", ""), f"{where}.table"), **lists, nodes=nodes, rules=rules)


def _node(values: Any, where: str) -> dict[str, Any]:
    values = _table(values, where, NodeMap)
    named = {
        key: {
            name: _text(text, f"{where}.{key}.{name}")
            for name, text in _mapping(values.get(key, {}), f"{where}.{key}").items()
        }
        for key in ("columns", "expressions")
    }
    texts = {name: _text(values[name], f"{where}.{name}") for name in ("table", "filter", "query") if name in values}
    if "query" in texts and ("table" in texts or named["expressions"]):
        raise ConfigError(f"{where}: a query has its own tables and expressions", cure="remove table and expressions")
    return {**texts, **named}


def _table(values: Any, where: str, kind: type[CompareMap] | type[NodeMap]) -> dict[str, Any]:
    known = [one.name for one in fields(kind)]
    table = _mapping(values, where)
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: there is no key {name}", cure=suggest(name, known))
    return table


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a table", cure="see docs/cross-engine.md")
    return dict(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected a text", cure="see docs/cross-engine.md")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{where}: expected a list of names", cure='write ["a", "b"]')
    return tuple(value)
