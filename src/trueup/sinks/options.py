"""Parses the address of a sink into the address of its server and the options of trueup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus

from trueup.config.wording import suggest
from trueup.errors import ConfigError

_YES_NO = {"yes": True, "true": True, "1": True, "on": True, "no": False, "false": False, "0": False, "off": False}


class Options:
    """The options of a sink, read one by one; `end` refuses the rest."""

    def __init__(self, kind: str, values: Mapping[str, str]) -> None:
        self.kind = kind
        self._left = dict(values)
        self._known: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        self._known.append(name)
        return self._left.pop(name, default)

    def choice(self, name: str, *choices: str) -> str:
        """Return one of the choices; the first one is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise self._wrong(name, value, f"one of {', '.join(choices)}")
        return value

    def yes_no(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.text(name, "yes" if default else "no").lower()
        if value not in _YES_NO:
            raise self._wrong(name, value, "yes or no")
        return _YES_NO[value]

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """Return a whole number."""
        value = self.text(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < least:
            raise self._wrong(name, value, f"a whole number of at least {least}")
        return int(value)

    def pairs(self, name: str) -> dict[str, str]:
        """Return pairs written as `a=b,c=d` or `a:b,c:d`."""
        result: dict[str, str] = {}
        value = self.text(name)
        for pair in filter(None, (part.strip() for part in value.split(","))):
            left, sign, right = pair.replace("=", ":", 1).partition(":")
            if not sign or not left.strip() or not right.strip():
                raise self._wrong(name, pair, "of the form source=target, with commas between")
            result[left.strip()] = right.strip()
        return result

    def end(self) -> None:
        """Raise ConfigError for an unknown option."""
        if self._left:
            name = sorted(self._left)[0]
            raise ConfigError(f"a {self.kind} sink has no option '{name}'", cure=suggest(name, self._known))

    def _wrong(self, name: str, value: str, must: str) -> ConfigError:
        return ConfigError(
            f"the option {name} of a {self.kind} sink must be {must}, not '{value}'", cure="change the option"
        )


def split_address(
    address: str, kind: str, values: Mapping[str, Any], *, ours: Sequence[str] | None = None
) -> tuple[str, Options]:
    """Return the address without our options, and the options; `ours` lists them if the address may have others."""
    place, sign, query = address.partition("?")
    options = {str(name): str(value) for name, value in values.items()}
    kept = []
    for piece in filter(None, query.split("&")):
        name, _, value = piece.partition("=")
        if ours is None or name in ours:
            options[unquote_plus(name)] = unquote_plus(value)
        else:
            kept.append(piece)
    return place + (sign + "&".join(kept) if kept else ""), Options(kind, options)
