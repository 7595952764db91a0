"""The differences that the user accepts by name: --accept-schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from trueup.db.schema import SchemaDifference
from trueup.errors import ConfigError

# Applications need these: no pattern accepts differences in them.
NEVER = ("table", "column")
# The value of the option without a value: it once accepted everything.
EVERYTHING = "*"
_ONE = re.compile(r'(?:"(?:[^"]|"")*"|\([^)]*\)|[^,"(])+')
_WORD = re.compile(r"([a-z ]+):(.+)", re.DOTALL)
_NEEDS_NAMES = "--accept-schema needs the names of the objects whose differences are accepted"
_CURE = (
    "name the objects as the error lists them, with * and ? as wildcards: --accept-schema"
    " 'public.sales,index:public.by_*,owner:*,role:report'"
)


@dataclass(frozen=True)
class Accepted:
    """Patterns of names of objects; `word` limits one to a kind of objects, or to one property that differs."""

    patterns: tuple[tuple[str, str], ...] = ()

    def accepts(self, difference: SchemaDifference, name: str) -> bool:
        """Return whether a pattern matches the difference of an object, whose displayed name is `name`."""
        return difference.kind not in NEVER and any(self._matches(each, difference, name) for each in self.patterns)

    def unused(self, differences: Iterable[tuple[SchemaDifference, str]]) -> list[str]:
        """Return the patterns that match none of the differences."""
        listed = list(differences)
        return [
            f"{word}:{pattern}" if word else pattern
            for word, pattern in self.patterns
            if not any(self._matches((word, pattern), *entry) for entry in listed)
        ]

    @staticmethod
    def _matches(entry: tuple[str, str], difference: SchemaDifference, name: str) -> bool:
        word, pattern = entry
        if word and word != difference.kind and {word} != set(difference.facts):
            return False
        # The arguments of functions contain brackets, which are patterns too.
        return any(name == text or fnmatchcase(name, text) for text in (pattern, f"public.{pattern}"))


def parse_accepted(names: Sequence[str]) -> Accepted:
    """Return the patterns of --accept-schema; raise ConfigError if it names everything, or nothing."""
    if isinstance(names, (str, bool)):
        raise ConfigError("accept_schema takes a list of names", cure=_CURE)
    patterns = []
    for name in (part.strip() for text in names for part in _ONE.findall(text)):
        match = _WORD.fullmatch(name)
        word, pattern = (match[1].strip(), match[2].strip()) if match else ("", name)
        if not name or name.startswith("-") or (not word and pattern in (EVERYTHING, "*.*")):
            raise ConfigError(
                "--accept-schema needs the names of the objects whose differences are accepted", cure=_CURE
            )
        patterns.append((word, pattern))
    if names and not patterns:
        raise ConfigError(_NEEDS_NAMES, cure=_CURE)
    return Accepted(tuple(patterns))
