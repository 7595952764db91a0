"""The settings of both files for the reference: defaults from the dataclasses, meanings from the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from trueup.config import template
from trueup.config.settings import kind_name
from trueup.config.sources import FIXED, PREFIX
from trueup.verbs.difflog import template as difflog_template
from trueup.verbs.difflog.model import RULES, Difflog, Entity, Rule, SideLog, StatePlace, Target

# Tables of difflog.toml -> what they become. Fields that are tables themselves stand under their own name.
DIFFLOG = {"": Difflog, "entity": Entity, "log": SideLog, "state": StatePlace, "clickhouse": Target}
_TABLES = {
    *(("", "entity"), ("", "logs"), ("", "state"), ("", "target")),
    *(("entity", "kept"), ("log", "columns"), ("spark", "conf")),
}
# Where the reader of the file fills in, or asks for, what the dataclass does not.
_READ = {
    ("", "work"): '`"difflog"`',
    ("state", "path"): "`state` below `work`",
    ("clickhouse", "table"): "required",
    ("clickhouse", "url"): "this or `path`",
    ("clickhouse", "path"): "this or `url`",
}
_TYPES = {"str": "a text", "int": "a whole number", "tuple[str, ...]": "a list of names"}


def settings_part() -> str:
    """Both files."""
    return "\n".join((_trueup_part(), _difflog_part()))


def undocumented_settings() -> list[str]:
    """Settings that no template explains."""
    lacking = []
    files = ((template.TEMPLATE, FIXED), (difflog_template.TEMPLATE, DIFFLOG))
    for text, tables in files:
        said = meanings(text)
        names = {(section, field.name) for section, kind in tables.items() for field in fields(kind)} - _TABLES
        lacking += [f"[{section}] {name}" for section, name in sorted(names) if not said.get((section, name))]
    return lacking


def code(text: str) -> str:
    """The text as code, fit for the cell of a table."""
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def meanings(text: str) -> dict[tuple[str, str], str]:
    """Table and key -> the comment above the key, in a template."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    comment: list[str] = []
    for line in text.splitlines():
        header = re.fullmatch(r"#?\[+([\w.]+)\]+", line)
        key = re.match(r'#?([\w"][\w."]*) = ', line)
        if header:
            section, comment = header[1], []
        elif key:
            found.setdefault((section, key[1]), " ".join(comment))
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:].strip())
        else:
            comment = []
    return found


def default_of(field: Field[Any]) -> str:
    """A default as TOML writes it; empty where there is none."""
    if field.default is MISSING:
        return ""
    if field.default == ():
        return "`[]`"
    return f"`{json.dumps(field.default)}`"


def _trueup_part() -> str:
    said = meanings(template.TEMPLATE)
    lines = [
        "## trueup.toml\n",
        "Looked for as `--config`, `TRUEUP_CONFIG`, `./trueup.toml`, then in the user's and the machine's folder of"
        " configurations. `trueup init` writes one with all of this in it. `${VAR}` and `${VAR:-default}` stand for"
        " environment variables in any text.\n",
        "### [nodes] and [clusters]\n",
        f"```toml\n{_shown('[nodes]', '[diff]')}\n```\n",
    ]
    for section, kind in FIXED.items():
        rows = [
            (
                code(field.name),
                said.get((section, field.name), ""),
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
    """A part of the template, with its examples in force."""
    text = template.TEMPLATE
    part = text[text.index(start) : text.index(f"\n{end}")]
    return re.sub(r'^#(?=[\w"\[])', "", part, flags=re.MULTILINE).strip()


def _difflog_part() -> str:
    said = meanings(difflog_template.TEMPLATE)
    lines = [
        "## difflog.toml\n",
        "Looked for as `--config`, `TRUEUP_DIFFLOG`, `./difflog.toml`, then the section `[difflog]` of `trueup.toml`."
        " `trueup difflog init` writes an example. `${VAR}` works in any text; variables do not set these.\n",
    ]
    for section, kind in DIFFLOG.items():
        rows = [
            (
                code(field.name),
                said.get((section, field.name), ""),
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
        "A line for each column: how a new value of it joins an old one. A rule is a text, or a table"
        f" `{{ {', '.join(field.name.replace('name', 'rule') + ' = …' for field in fields(Rule))} }}`: `by` is the time"
        " column of `last`, `sql` the Spark SQL over `old.X` and `new.X` of `expr`. The rules are"
        f' {", ".join(map(code, RULES))}; what no rule speaks of is replaced. NULL means "nothing said".\n',
    ]
    return "\n".join(lines)


def _difflog_default(section: str, field: Field[Any]) -> str:
    if (section, field.name) in _READ:
        return _READ[section, field.name]
    return "required" if field.default is MISSING else default_of(field)
