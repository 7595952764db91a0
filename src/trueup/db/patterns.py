"""Select tables by name patterns with `*`, `?` and `[…]`, and by patterns to exclude."""

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
    """One name or pattern as the user wrote it; a quoted part matches literally."""

    text: str
    schema: NamePart
    table: NamePart

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the pattern matches a table."""
        return _matches(self.schema, schema) and _matches(self.table, table)

    @property
    def names_one(self) -> bool:
        """Whether it is the name of one table, which may also be a partition or a materialized view."""
        return not (_is_glob(self.schema) or _is_glob(self.table))

    @property
    def names_schema(self) -> bool:
        """Whether the schema is a name, not a pattern."""
        return not _is_glob(self.schema)


@dataclass(frozen=True)
class Patterns:
    """The tables that match one of `take` and none of `skip`; use `(schema, table) in patterns`."""

    take: tuple[Pattern, ...]
    skip: tuple[Pattern, ...] = ()

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, tuple)
        schema, table = name
        return any(pattern.matches(schema, table) for pattern in self.take) and not self.skips(schema, table)

    def skips(self, schema: str, table: str) -> bool:
        """Return whether a table is excluded."""
        return any(pattern.matches(schema, table) for pattern in self.skip)

    def __str__(self) -> str:
        return ", ".join(pattern.text for pattern in self.take)


def parse_patterns(
    *, schemas: Sequence[str] = (), tables: Sequence[str] = (), skip: Sequence[str] = (), skip_file: str = ""
) -> Patterns:
    """Return the patterns of --schema, --tables, --exclude-tables and --exclude-tables-file."""
    all_of_schemas = [f"{name}.*" for text in schemas for name in _split(text)]
    take = [_parse(text) for text in (*all_of_schemas, *(name for text in tables for name in _split(text)))]
    excluded = [name for text in (*skip, *_lines(skip_file)) for name in _split(text)]
    return Patterns(tuple(take), tuple(map(_parse, excluded)))


def _lines(path: str) -> Iterable[str]:
    if not path:
        return []
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"--exclude-tables-file {path}: {why}", cure="name a text file with one table or pattern per line"
        ) from None
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def _split(text: str) -> list[str]:
    return [name.strip() for name in _ONE.findall(text) if name.strip()]


def _parse(text: str) -> Pattern:
    return Pattern(text, *parse_table_name(text))


def _is_glob(part: NamePart) -> bool:
    return not part.quoted and bool(_GLOB & set(part.text))


def _matches(part: NamePart, name: str) -> bool:
    if not _is_glob(part):
        return name in part.spellings()
    return any(fnmatchcase(name, spelling) for spelling in part.spellings())
