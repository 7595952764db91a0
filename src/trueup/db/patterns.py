"""Which tables are meant: names with `*`, `?` and `[…]` in them, and names that are left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from trueup.db.names import NamePart, parse_table_name
from trueup.errors import ConfigError

_GLOB = frozenset("*?[")
_ONE = re.compile(r'(?:"(?:[^"]|"")*"|[^,"])+')


@dataclass(frozen=True)
class Pattern:
    """One name as the user wrote it; what is quoted is taken to the letter."""

    text: str
    schema: NamePart
    table: NamePart

    def matches(self, schema: str, table: str) -> bool:
        """Whether a table is meant."""
        return _fits(self.schema, schema) and _fits(self.table, table)

    @property
    def names_one(self) -> bool:
        """Whether it is the name of one table: then a partition or a materialized view may be meant too."""
        return not (_is_glob(self.schema) or _is_glob(self.table))

    @property
    def names_schema(self) -> bool:
        """Whether the schema is named, and not only fitted."""
        return not _is_glob(self.schema)


@dataclass(frozen=True)
class Patterns:
    """The tables that fit one of `take` and none of `skip`; `(schema, table) in patterns` asks."""

    take: tuple[Pattern, ...]
    skip: tuple[Pattern, ...] = ()

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, tuple)
        schema, table = name
        return any(each.matches(schema, table) for each in self.take) and not self.skips(schema, table)

    def skips(self, schema: str, table: str) -> bool:
        """Whether a table is left out by name."""
        return any(each.matches(schema, table) for each in self.skip)

    def __str__(self) -> str:
        return ", ".join(each.text for each in self.take)


def parse_patterns(
    *, schemas: Sequence[str] = (), tables: Sequence[str] = (), skip: Sequence[str] = (), skip_file: str = ""
) -> Patterns:
    """Return the patterns of --schema, --tables, --exclude-tables and --exclude-tables-file."""
    whole = [f"{name}.*" for text in schemas for name in _split(text)]
    take = [_parse(text) for text in (*whole, *(name for text in tables for name in _split(text)))]
    left_out = [name for text in (*skip, *_lines(skip_file)) for name in _split(text)]
    return Patterns(tuple(take), tuple(map(_parse, left_out)))


def _lines(path: str) -> Iterable[str]:
    if not path:
        return []
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"--exclude-tables-file {path}: {why}", cure="name a text file with a table or pattern a line"
        ) from None
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def _split(text: str) -> list[str]:
    return [name.strip() for name in _ONE.findall(text) if name.strip()]


def _parse(text: str) -> Pattern:
    return Pattern(text, *parse_table_name(text))


def _is_glob(part: NamePart) -> bool:
    return not part.quoted and bool(_GLOB & set(part.text))


def _fits(part: NamePart, name: str) -> bool:
    if not _is_glob(part):
        return name in part.spellings()
    return any(fnmatchcase(name, spelling) for spelling in part.spellings())
