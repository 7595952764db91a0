"""A commented plan to start from, made of a report: it does nothing until somebody edits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trueup.errors import ConfigError
from trueup.report.json_file import write_private
from trueup.task.past import Past

_TEXT = """\
# What becomes of the rows that differ between {nodes}.
# Report: {report}
#
#   trueup repair {report} --plan THIS_FILE             shows what it would do
#   trueup repair {report} --plan THIS_FILE --execute   does it
#
# A row of `rows:` decides for its key. Otherwise the first rule decides whose `when:` fits, and otherwise the default.
# What nothing decides is left as it is, and listed.
#
# Actions:  {{keep: {first}}}   all nodes become like {first}: the row is inserted, updated or deleted there
#           insert        where the row lacks, it is inserted; changed rows are left
#           delete        the row is deleted on every node
#           skip          nothing is done
#           {{row: {{from: {first}, columns: {{{column}: {second}}}}}}}   a row of {first}, with {column} of {second}
#           {{row: {{from: {first}, columns: {{{column}: {{value: TEXT}}}}}}}}   … or with a given value (null: NULL)
version: 1
tables:
  {table}:
    # default: {{keep: {first}}}
    rules:
      # - name: rows that {second} lacks
      #   when: {{kind: missing, pair: {first}/{second}}}      # missing, extra or changed
      #   action: insert
      # - name: only this column differs
      #   when: {{only_columns: [{column}]}}                   # columns: [...]: one of these differs
      #   action: {{keep: {second}}}
      # - name: by key
      #   when: {{keys: [{key}, {{from: {key}, to: {key}}}]}}
      #   action: skip
      # - name: the later one
      #   when: {{where: "{first}.{column} > {second}.{column}"}}   # SQL; a row that is not there is all NULL
      #   action: {{keep: {first}}}
    rows:
      # - {{key: {key}, action: {{keep: {first}}}}}
"""


def write_plan(path: Path, past: Past) -> None:
    """Write it; a file that is there is not written over."""
    if path.exists():
        raise ConfigError(f"there is a file {path}", cure="name another one with --write-plan, or remove it")
    nodes = past.nodes
    key = past.summary["primary_key"]
    column = next((name for name in past.summary["columns"] if name not in key), past.summary["columns"][0])
    values = past.keys[0] if past.keys else tuple("…" for _ in key)
    text = _TEXT.format(
        nodes=", ".join(nodes),
        report=past.path,
        first=_yaml(nodes[0]),
        second=_yaml(nodes[1]),
        column=_yaml(column),
        table=_yaml(past.table),
        key="{" + ", ".join(f"{_yaml(name)}: {_yaml(value)}" for name, value in zip(key, values, strict=True)) + "}",
    )
    write_private(path, text)


def _yaml(text: Any) -> str:
    """A text that YAML reads back as it is."""
    plain = str(text)
    if plain.isascii() and plain.replace("_", "").replace(".", "").isalnum() and plain.lower() not in ("null", ""):
        return plain
    return json.dumps(plain)
