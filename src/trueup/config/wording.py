"""Wording of messages: errors about the configuration, the most similar known name, numbers with nouns, lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from trueup.config.secrets import mask
from trueup.errors import ConfigError


def problem(where: str, what: str, cure: str = "") -> ConfigError:
    """Return an error at a place of the configuration, with passwords masked."""
    return ConfigError(mask(f"{where}: {what}" if where else what), cure=cure)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the cure for an unknown name: the most similar known name, and all known names."""
    names = sorted(known)
    if not names:
        return "None is defined."
    by_lower = {known_name.lower(): known_name for known_name in names}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f'Did you mean "{by_lower[near[0]]}"? ' if near else ""
    return f"{hint}Use one of: {', '.join(names)}."


def counted(number: int, what: str) -> str:
    """Return a number with its noun: 1 row, 2 rows, 3 entries."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1]}ies" if what.endswith("y") and what[-2:] != "ey" else f"{number:,} {what}s"


def shown_names(names: Sequence[str], most: int = 10) -> str:
    """Return names as a list in a sentence: at most `most` of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def size_text(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 10_000:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.0f} TB"
