"""Parse names of tables and columns as users write them, and format them for messages."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from trueup.errors import ConfigError

_FOLD = str.maketrans(ascii_uppercase, ascii_lowercase)


@dataclass(frozen=True)
class NamePart:
    """One part of a name: its text, and whether the user quoted it, which makes it literal."""

    text: str
    quoted: bool

    def spellings(self) -> tuple[str, ...]:
        """Return the names that this part may mean, most likely first: PostgreSQL folds unquoted names."""
        # Like PostgreSQL, fold A to Z only.
        folded = self.text.translate(_FOLD)
        if self.quoted or folded == self.text:
            return (self.text,)
        return (folded, self.text)


def parse_table_name(text: str) -> tuple[NamePart, NamePart]:
    """Split `customers`, `public.customers` or `"My Schema"."My.Table"` into schema and table."""
    parts = _parse_parts(text)
    if len(parts) == 1:
        return NamePart("public", quoted=True), parts[0]
    if len(parts) == 2:
        return parts[0], parts[1]
    raise _bad_name(text, "it has more than two parts")


def table_spellings(text: str) -> list[tuple[str, str]]:
    """Return the pairs of schema and table that a name may mean, most likely first."""
    schema, table = parse_table_name(text)
    return [(schema_name, table_name) for schema_name in schema.spellings() for table_name in table.spellings()]


def parse_column_names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of column names; quoted names may contain commas and spaces."""
    names: list[str] = []
    rest = text.strip()
    while rest:
        part, rest = _parse_one(rest, text, end=",")
        names.append(part.text)
        rest = rest.strip()
        if rest:
            rest = rest[1:].strip()
            if not rest:
                raise _bad_name(text, "it ends with a comma")
    return tuple(names)


def display_name(schema: str, table: str) -> str:
    """Return `schema.table` for messages, with quotes only where parsing requires them."""
    return f"{display_part(schema)}.{display_part(table)}"


def display_part(name: str) -> str:
    """Return one part of a name for messages, with quotes where parsing requires them."""
    plain = name.isidentifier() and name == name.lower()
    return name if plain else quoted_name(name)


def quoted_name(name: str) -> str:
    """Return one part of a name in double quotes, as in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _parse_parts(text: str) -> list[NamePart]:
    parts: list[NamePart] = []
    rest = text.strip()
    while True:
        part, rest = _parse_one(rest, text, end=".")
        parts.append(part)
        if not rest:
            return parts
        rest = rest[1:]


def _parse_one(rest: str, text: str, *, end: str) -> tuple[NamePart, str]:
    """Parse the name at the start of `rest`; return it with the remaining text, which is empty or starts with `end`."""
    if not rest.startswith('"'):
        name, _, _ = rest.partition(end)
        if not name.strip() or '"' in name:
            raise _bad_name(text, "a part of it is empty" if not name.strip() else "a quote is misplaced")
        return NamePart(name.strip(), quoted=False), rest[len(name) :]
    position = 1
    chars: list[str] = []
    while position < len(rest):
        if rest[position] != '"':
            chars.append(rest[position])
            position += 1
        elif rest[position : position + 2] == '""':
            chars.append('"')
            position += 2
        else:
            tail = rest[position + 1 :].lstrip()
            if (tail and not tail.startswith(end)) or not chars:
                raise _bad_name(text, "a quote is misplaced")
            return NamePart("".join(chars), quoted=True), tail
    raise _bad_name(text, "a quote is not closed")


def _bad_name(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"'{text}' is not a valid name: {why}",
        cure='write schema.table, with double quotes around names with dots or capital letters: public."My Table"',
    )
