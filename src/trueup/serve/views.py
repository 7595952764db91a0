"""The blocks that pages consist of. The template escapes every text; only pictures of `charts` are markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import quote, urlencode

from markupsafe import Markup

Tone = Literal["", "good", "differ", "trouble", "plain"]
NO_PICTURE = Markup("")


@dataclass(frozen=True)
class Cell:
    """A cell of a table: text, with a link, a colour, a smaller note, a time (ISO) or a picture."""

    text: str = ""
    link: str = ""
    tone: Tone = ""
    note: str = ""
    # A time: shown as its age, which the script keeps up to date.
    at: str = ""
    picture: Markup = NO_PICTURE
    form: Form | None = None


@dataclass(frozen=True)
class Form:
    """A button that requests an action."""

    label: str
    action: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A table with a title; columns in `numbers` are right-aligned."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()
    empty: str = ""
    # Links below the table, such as to the next page: text and address.
    links: Sequence[tuple[str, str]] = ()
    note: str = ""
    kind: str = "grid"


@dataclass(frozen=True)
class Tile:
    """A number of the overview."""

    label: str
    value: str
    link: str = ""
    tone: Tone = ""
    note: str = ""


@dataclass(frozen=True)
class Tiles:
    """The numbers of the overview."""

    tiles: Sequence[Tile]
    kind: str = "tiles"


@dataclass(frozen=True)
class Notes:
    """A list of remarks or problems, each with a link or without."""

    title: str
    items: Sequence[Cell]
    tone: Tone = "plain"
    kind: str = "notes"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    facts: Mapping[str, Cell]
    kind: str = "facts"


@dataclass(frozen=True)
class Chart:
    """A picture with a title and a text that says the same."""

    title: str
    picture: Markup
    text: str = ""
    kind: str = "chart"


@dataclass(frozen=True)
class Search:
    """A form that filters a list: fields with their choices (none: free text) and current values."""

    path: str
    fields: Sequence[tuple[str, str, Sequence[str]]]
    kind: str = "search"


@dataclass(frozen=True)
class Progress:
    """The progress of a running task, from 0 to 1; None: not known."""

    label: str
    share: float | None
    kind: str = "progress"


@dataclass(frozen=True)
class Buttons:
    """Actions."""

    forms: Sequence[Form]
    kind: str = "buttons"


Block: TypeAlias = Grid | Tiles | Notes | Facts | Chart | Search | Progress | Buttons


@dataclass(frozen=True)
class View:
    """A page: its title, its place in the navigation, and its blocks."""

    title: str
    place: str
    blocks: Sequence[Block]
    verdict: str = ""
    tone: Tone = ""
    meaning: str = ""
    # The page of which this is a detail: text and address.
    above: tuple[str, str] | None = None


def link_to(path: str, **query: str) -> str:
    """Return an address on this server; empty values are left out."""
    values = {name: value for name, value in query.items() if value}
    return quote(path, safe="/") + (f"?{urlencode(values)}" if values else "")


_TONES: dict[str, Tone] = {
    "MATCH": "good",
    "DIFFER": "differ",
    "INCOMPLETE": "trouble",
    "RESOLVED": "plain",
    "ACCEPTED": "plain",
}
_STATUS_TONES: dict[str, Tone] = {"RUNNING": "plain", "COMPLETED": "", "FAILED": "trouble", "INTERRUPTED": "differ"}


def verdict_tone(verdict: str) -> Tone:
    """Return the colour of a verdict; green only for a proof."""
    return _TONES.get(verdict, "plain")


def status_tone(status: str) -> Tone:
    """Return the colour of the status of a task."""
    return _STATUS_TONES.get(status, "")
