"""Write a commented plan to start from, made from a report: it does nothing until it is edited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trueup.db.names import quoted_name
from trueup.errors import ConfigError
from trueup.report.json_file import write_private
from trueup.task.past import Past

_TEXT = """\
# How to repair the rows that differ between {nodes}.
# Report: {report}
#
#   trueup repair {report} --plan THIS_FILE             show what would be done
#   trueup repair {report} --plan THIS_FILE --execute   do it
#
# An entry of `rows:` decides for its key. Otherwise the first rule whose `when:` holds decides, otherwise the default.
# A key for which nothing decides is left as it is and listed.
#
# Actions:  {{keep: {first}}}   all nodes become like {first}: the row is inserted, updated or deleted
#           insert        insert the row on the nodes that lack it; leave changed rows alone
#           delete        delete the row on every node
#           skip          leave the row as it is
#           {{row: {{from: {first}, columns: {{{column}: {second}}}}}}}   the row of {first}, with {column} of {second}
#           {{row: {{from: {first}, columns: {{{column}: {{value: TEXT}}}}}}}}   … or with a given value (null: NULL)
version: 1
tables:
"""
_TABLE = """\
  {table}:
    # default: {{keep: {first}}}
    rules:
      # - name: rows that are missing on {second}
      #   when: {{kind: missing, pair: [{first}, {second}]}}   # missing, extra or changed
      #   action: insert
      # - name: only this column differs
      #   when: {{only_columns: [{column}]}}                   # columns: [...]: one of these columns differs
      #   action: {{keep: {second}}}
      # - name: by key
      #   when: {{keys: [{key}, {{from: {key}, to: {key}}}]}}
      #   action: skip
      # - name: the newer row
      #   when: {{where: {newer}}}   # SQL; a missing row is all NULL
      #   action: {{keep: {first}}}
    rows:
      # - {{key: {key}, action: {{keep: {first}}}}}
"""


def write_plan(path: Path, report: str, pasts: Iterable[Past], unrepaired: Mapping[str, str] | None = None) -> None:
    """Write a plan with a section per table; `unrepaired` are tables that no plan can repair, with the reasons.

    Raises ConfigError if the file exists, or if there is no table.
    """
    if path.exists():
        raise ConfigError(f"the file {path} exists", cure="give another path with --write-plan, or remove the file")
    text = ""
    for past in pasts:
        text += ("" if text else _TEXT.format(report=report, **_names(past))) + _TABLE.format(**_names(past))
    for table, reason in (unrepaired or {}).items():
        text += f"  # {' '.join(f'{table}: {reason}'.split())}\n" if text else ""
    if not text:
        raise ConfigError("no table of the run has keys that can be repaired", cure="run trueup repair to see why")
    write_private(path, text)


def _names(past: Past) -> dict[str, str]:
    nodes = past.nodes
    key = past.summary["primary_key"]
    column = next((name for name in past.summary["columns"] if name not in key), past.summary["columns"][0])
    values = past.keys[0] if past.keys else tuple("…" for _ in key)
    newer = " > ".join(f"{quoted_name(node)}.{quoted_name(column)}" for node in nodes[:2])
    return {
        "nodes": ", ".join(map(_yaml, nodes)),
        "first": _yaml(nodes[0]),
        "second": _yaml(nodes[1]),
        "column": _yaml(column),
        "newer": _yaml(newer),
        "table": _yaml(past.table),
        "key": "{" + ", ".join(f"{_yaml(name)}: {_yaml(value)}" for name, value in zip(key, values, strict=True)) + "}",
    }


def _yaml(text: Any) -> str:
    """Return a scalar that YAML parses to this text."""
    plain = str(text)
    if plain.isascii() and plain.replace("_", "").replace(".", "").isalnum() and plain.lower() not in ("null", ""):
        return plain
    if plain.isprintable() and "'" not in plain:
        return f"'{plain}'"
    return '"' + "".join(map(_escaped, plain)) + '"'


def _escaped(character: str) -> str:
    if character in ('"', "\\"):
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
