"""One value of the configuration: its place, replacement of ${VAR}, and conversion to a type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trueup.config.settings import expected_found, has_type, kind_name
from trueup.config.wording import problem

_REFERENCE = r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<close>\}?)"
_VARIABLE = r"(?s)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?"
_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True)
class Setting:
    """A raw value and its place for error messages: a key of the file, a variable, an option."""

    where: str
    value: Any = field(repr=False)
    # From a variable or an option: no ${VAR} is replaced, and the text is converted to the type of the setting.
    is_text: bool = False

    def convert(self, kind: type, env: Mapping[str, str]) -> Any:
        """Return the value as bool, int, float or str; raises ConfigError if it cannot be converted."""
        value = self.value
        if self.is_text:
            return self._from_text(value, kind)
        if isinstance(value, str):
            text = interpolate(value, env, self.where)
            # A variable may contain a number: block_size = "${BLOCK_SIZE}".
            if kind is not str and text != value:
                return self._from_text(text, kind)
            value = text
        if not has_type(value, kind):
            cure = f"Write {kind_name(kind)}." if kind is not str else "Put the value in quotes."
            raise problem(self.where, expected_found(kind, value), cure)
        return kind(value)

    def words(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the value as a tuple of texts; in a variable they are separated by commas."""
        if self.is_text:
            return tuple(word.strip() for word in self.value.split(",") if word.strip())
        if not isinstance(self.value, list):
            raise problem(self.where, expected_found(list, self.value), 'Write a list, like ["n1", "n2"].')
        items = [Setting(f"{self.where}[{number}]", item) for number, item in enumerate(self.value)]
        return tuple(str(item.convert(str, env)) for item in items)

    def _from_text(self, text: str, kind: type) -> Any:
        try:
            return _BOOLEANS[text.strip().lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            pass
        raise problem(self.where, f"expected {kind_name(kind)}, found another text", f"Use {kind_name(kind)}.")


def interpolate(text: str, env: Mapping[str, str], where: str) -> str:
    """Return the text with `${VAR}` and `${VAR:-default}` replaced once, and `$${` as a literal `${`."""

    def fill(reference: re.Match[str]) -> str:
        if reference["inside"] is None:
            return "${"
        variable = re.fullmatch(_VARIABLE, reference["inside"])
        # The text may be part of a password, so it is not shown.
        if not variable or not reference["close"]:
            cure = "Write ${VAR} or ${VAR:-default}, and $${ for a literal ${."
            raise problem(where, "${ is not followed by the name of a variable and }", cure)
        value = env.get(variable["name"])
        if variable["default"] is not None:
            return value or variable["default"]
        if value is None:
            name = variable["name"]
            cure = f"Set {name}, or write ${{{name}:-default}}, or $${{ for a literal ${{."
            raise problem(where, f"the environment variable {name} is not set", cure)
        return value

    return re.sub(_REFERENCE, fill, text)


def literal_part(text: str) -> str:
    """Return the text with every reference replaced by its default, or by NUL."""

    def keep(reference: re.Match[str]) -> str:
        if reference["inside"] is None:
            return "${"
        variable = re.fullmatch(_VARIABLE, reference["inside"])
        return (variable["default"] or "\0") if variable else reference[0]

    return re.sub(_REFERENCE, keep, text)
