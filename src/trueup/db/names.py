"""Names as people type them, and names as SQL wants them: the only place where identifiers are taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from trueup.errors import ConfigError

_FOLD = str.maketrans(ascii_uppercase, ascii_lowercase)


@dataclass(frozen=True)
class NamePart:
    """One part of a name: its text, and whether the user quoted it (then it is taken to the letter)."""

    text: str
    quoted: bool

    def spellings(self) -> tuple[str, ...]:
        """The names this part may stand for, most likely first: PostgreSQL folds what is not quoted."""
        # As PostgreSQL does it: only A to Z are folded.
        folded = self.text.translate(_FOLD)
        if self.quoted or folded == self.text:
            return (self.text,)
        return (folded, self.text)


def parse_table_name(text: str) -> tuple[NamePart, NamePart]:
    """Take `customers`, `public.customers` or `"My Schema"."My.Table"` apart into schema and table."""
    parts = _parse_parts(text)
    if len(parts) == 1:
        return NamePart("public", quoted=True), parts[0]
    if len(parts) == 2:
        return parts[0], parts[1]
    raise _bad_name(text, "it has more than two parts")


def parse_column_names(text: str) -> tuple[str, ...]:
    """Take a comma-separated list of column names apart; quotes keep commas and spaces."""
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
    """`schema.table` for people, with quotes only where they are needed to read it back."""
    return f"{display_part(schema)}.{display_part(table)}"


def display_part(name: str) -> str:
    """One part of a name for people, with quotes where they are needed to read it back."""
    plain = name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def _parse_parts(text: str) -> list[NamePart]:
    parts: list[NamePart] = []
    rest = text.strip()
    while True:
        part, rest = _parse_one(rest, text, end=".")
        parts.append(part)
        if not rest:
            return parts
        rest = rest[1:]


def _parse_one(rest: str, whole: str, *, end: str) -> tuple[NamePart, str]:
    """Read one name off the front; what is returned with it starts with `end`, or is empty."""
    if not rest.startswith('"'):
        name, _, _ = rest.partition(end)
        if not name.strip() or '"' in name:
            raise _bad_name(whole, "a part of it is empty" if not name.strip() else "a quote is misplaced")
        return NamePart(name.strip(), quoted=False), rest[len(name) :]
    at = 1
    chars: list[str] = []
    while at < len(rest):
        if rest[at] != '"':
            chars.append(rest[at])
            at += 1
        elif rest[at : at + 2] == '""':
            chars.append('"')
            at += 2
        else:
            tail = rest[at + 1 :].lstrip()
            if (tail and not tail.startswith(end)) or not chars:
                raise _bad_name(whole, "a quote is misplaced")
            return NamePart("".join(chars), quoted=True), tail
    raise _bad_name(whole, "a quote is not closed")


def _bad_name(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"'{text}' is not a name: {why}",
        cure='write schema.table, with double quotes around names that hold dots or capitals: public."My Table"',
    )
