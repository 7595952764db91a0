"""Settings of trueup.toml and difflog.toml for the reference: defaults from dataclasses, texts from templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from trueup.config import template
from trueup.config.settings import kind_name
from trueup.config.sources import FIXED, PREFIX
from trueup.verbs.difflog.model import RULES, DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog_ends import template as difflog_template

# Tables of difflog.toml -> their dataclasses. Fields that are tables are documented under their own name.
DIFFLOG = {"": DiffLogConfig, "entity": Entity, "log": SideLog, "state": StatePlace, "clickhouse": Target}
_TABLES = {
    *(("", "entity"), ("", "logs"), ("", "state"), ("", "target"), ("", "warnings"), ("", "history")),
    *(("entity", "kept"), ("log", "columns"), ("spark", "conf")),
}
# Defaults that the reader of the file sets, not the dataclass.
_READ = {
    ("", "work"): '`"difflog"`',
    ("state", "path"): "`state` below `work`",
    ("clickhouse", "table"): "required",
    ("clickhouse", "url"): "this or `path`",
    ("clickhouse", "path"): "this or `url`",
}
_TYPES = {"str": "a text", "int": "a whole number", "tuple[str, ...]": "a list of names"}


def settings_part() -> str:
    """Return the sections about both files."""
    return "\n".join((_trueup_part(), _difflog_part()))


def undocumented_settings() -> list[str]:
    """Return the settings without a comment in a template."""
    missing = []
    files = ((template.TEMPLATE, FIXED), (difflog_template.TEMPLATE, DIFFLOG))
    for text, tables in files:
        comments = meanings(text)
        names = {(section, field.name) for section, kind in tables.items() for field in fields(kind)} - _TABLES
        missing += [f"[{section}] {name}" for section, name in sorted(names) if not comments.get((section, name))]
    return missing


def code(text: str) -> str:
    """Return the text as Markdown code."""
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def meanings(text: str) -> dict[tuple[str, str], str]:
    """Return table and key -> the comment above the key, in a template."""
    comments: dict[tuple[str, str], str] = {}
    section = ""
    comment: list[str] = []
    for line in text.splitlines():
        header = re.fullmatch(r"#?\[+([\w.]+)\]+", line)
        key = re.match(r'#?([\w"][\w."]*) = ', line)
        if header:
            section, comment = header[1], []
        elif key:
            comments.setdefault((section, key[1]), " ".join(comment))
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:].strip())
        else:
            comment = []
    return comments


def default_of(field: Field[Any]) -> str:
    """Return a default as TOML; empty if there is none."""
    if field.default is MISSING:
        return ""
    if field.default == ():
        return "`[]`"
    return f"`{json.dumps(field.default)}`"


def _trueup_part() -> str:
    comments = meanings(template.TEMPLATE)
    lines = [
        "## trueup.toml\n",
        "The first of `--config`, `TRUEUP_CONFIG`, `./trueup.toml`, the user's and the system's configuration folder."
        " `trueup init` writes a file with all settings. `${VAR}` and `${VAR:-default}` are replaced by environment"
        " variables in any text.\n",
        "### [nodes] and [clusters]\n",
        f"```toml\n{_shown('[nodes]', '[diff]')}\n```\n",
    ]
    for section, kind in FIXED.items():
        rows = [
            (
                code(field.name),
                comments.get((section, field.name), ""),
                kind_name(type(field.default)),
                default_of(field),
                code(f"{PREFIX}{section}__{field.name}".upper()),
            )
            for field in fields(kind)
            if field.default is not MISSING
        ]
        lines += [f"### [{section}]\n", table(("setting", "meaning", "type", "default", "variable"), rows)]
        if section == "spark":
            lines += ["### [spark.conf]\n", f"```toml\n{_shown('# Settings that are passed', '[tasks]')}\n```\n"]
    lines += ["### [schedule]\n", f"```toml\n{_shown('# Jobs of', '# A version log')}\n```\n"]
    return "\n".join(lines)


def _shown(start: str, end: str) -> str:
    """Return a part of the template, with the examples uncommented."""
    text = template.TEMPLATE
    part = text[text.index(start) : text.index(f"\n{end}")]
    return re.sub(r'^#(?=[\w"\[])', "", part, flags=re.MULTILINE).strip()


def _difflog_part() -> str:
    comments = meanings(difflog_template.TEMPLATE)
    lines = [
        "## difflog.toml\n",
        "The first of `--config`, `TRUEUP_DIFFLOG`, `./difflog.toml`, and the section `[difflog]` of `trueup.toml`."
        " `trueup difflog init` writes an example. `${VAR}` is replaced in any text.\n",
    ]
    for section, kind in DIFFLOG.items():
        rows = [
            (
                code(field.name),
                comments.get((section, field.name), ""),
                _TYPES.get(str(field.type), "a table"),
                _difflog_default(section, field),
            )
            for field in fields(kind)
            if (section, field.name) not in _TABLES
        ]
        title = f"[[{section}]]" if section == "log" else f"[{section}]" if section else "above the first table"
        lines += [f"### {title}\n", table(("setting", "meaning", "type", "default"), rows)]
    lines += [
        "### [entity.kept] and [log.columns]\n",
        "One line per column: how a new value is combined with the old one. A rule is a text, or a table"
        f" `{{ {', '.join(field.name.replace('name', 'rule') + ' = …' for field in fields(Rule))} }}`: `by` is the time"
        " column of `last`, `sql` the Spark SQL over `old.X` and `new.X` of `expr`. The rules are"
        f" {', '.join(map(code, RULES))}; columns without a rule are replaced. NULL means no value.\n",
    ]
    return "\n".join(lines)


def _difflog_default(section: str, field: Field[Any]) -> str:
    if (section, field.name) in _READ:
        return _READ[section, field.name]
    return "required" if field.default is MISSING else default_of(field)
