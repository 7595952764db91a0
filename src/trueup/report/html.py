"""The HTML report: one self-contained file, every value escaped, readable by its owner only.

The differences are in the page once, as JSON that is not executed; the script shows a hundred of them at a time.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trueup.config.visible import visible
from trueup.report.json_file import private_file
from trueup.report.json_reader import Report, Section, divided, listed_as, showing
from trueup.report.page import Page, page_of_diff
from trueup.report.text import difference_lines

if TYPE_CHECKING:
    from jinja2 import Environment

# Limits per pair and for the whole page, so that a browser stays fast. The JSON report has all differences.
MAX_ROWS = 10_000
MAX_BYTES = 40_000_000
# Differences per pair that are shown without scripts.
_PLAIN_ROWS = 50


def write_diff_page(path: Path, report: Report) -> Path:
    """Write the page of a report, with some of its differences; return the path."""
    with showing(report.path):
        return write_html(path, page_of_diff(report.head, report.counts, str(report.path)), report)


def write_html(path: Path, page: Page, report: Report | None = None) -> Path:
    """Write a page, and differences of the report as they come; return the path."""
    pieces, _ = html_pieces(page, report)
    with private_file(path) as file:
        file.writelines(pieces)
    return path


def html_pieces(page: Page, report: Report | None = None) -> tuple[Iterator[str], str]:
    """Return the pieces of a page, which read the report as they come, and its content security policy."""
    environment = _environment()
    style, script = (_file(environment, name) for name in ("report.css", "report.js"))
    data: Iterator[Markup] | None = None
    plain: Iterator[tuple[str, Sequence[Mapping[str, Any]]]] = iter(())
    if page.data is not None and report is not None:
        data = map(Markup, _data(page.data, report))
        plain = ((section.pair, report.some(section, _PLAIN_ROWS)) for section in report.sections)
    policy = _policy(style, script)
    pieces = environment.get_template("report.html.j2").generate(
        page=page, style=style, script=script, policy=policy, data=data, plain=plain
    )
    return pieces, policy


@cache
def _environment() -> Environment:
    """Return the environment; it keeps the compiled template, which takes longer to compile than to fill."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trueup.report"),
        autoescape=True,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals["difference_lines"] = difference_lines
    return environment


def _file(environment: Environment, name: str) -> Any:
    """Return a file of this package, to be included unescaped."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _policy(style: str, script: str) -> str:
    """Return the content security policy: nothing is loaded, and only the script of this package runs."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _data(head: Mapping[str, Any], report: Report) -> Iterator[str]:
    """Yield the data of the page: per pair the counts of the report, and a fair share of its differences."""
    columns, left = list(head["columns"]), MAX_BYTES
    yield f'{_json(head)[:-1]},"pairs":['
    for index, section in enumerate(report.sections):
        names = {"pair": section.pair, "nodes": _nodes_of(section.pair, head["nodes"]), **section.counts}
        names["listed"] = dict(section.listed)
        yield f'{"," if index else ""}\n{_json(names)[:-1]},"differences":['
        # Each pair gets an equal share of the remaining bytes.
        share = _Share(section, left // (len(report.sections) - index))
        is_first = True
        for difference in report.differences(section, share.has_room):
            text = _json(_compact(difference, columns))
            if share.take(listed_as(difference), len(text)):
                yield f"{'' if is_first else ','}\n{text}"
                is_first = False
        left -= share.used
        yield "]}"
    yield "]}"


class _Share:
    """What one pair may put on the page, divided among the kinds of differences, so that some of each are shown."""

    def __init__(self, section: Section, size: int) -> None:
        self._rows = divided(MAX_ROWS, section.listed)
        # Entries of the report that were not seen yet: what a kind does not need, the others may use.
        self._unseen = dict(section.listed)
        self._size = size
        self._part = size // max(1, len(section.listed))
        self._used = dict.fromkeys(section.listed, 0)

    @property
    def used(self) -> int:
        """The bytes that were used."""
        return sum(self._used.values())

    def has_room(self, kind: str) -> bool:
        """Return whether one more difference of a kind may be shown; called once for each."""
        self._unseen[kind] -= 1
        return self._rows[kind] > 0

    def take(self, kind: str, size: int) -> bool:
        """Use the room of one difference, or return False if it is too large."""
        reserved = sum(
            max(0, self._part - used)
            for other, used in self._used.items()
            if other != kind and self._rows[other] and self._unseen[other]
        )
        if self.used + reserved + size > self._size:
            # No smaller one either: the first ones are shown, not the short ones.
            self._rows[kind] = 0
            return False
        self._rows[kind] -= 1
        self._used[kind] += size
        return True


def _nodes_of(pair: str, nodes: Sequence[str]) -> list[str]:
    """Return the two nodes of a pair; their names may contain a slash."""
    return next((list(two) for two in combinations(nodes, 2) if "/".join(two) == pair), pair.split("/", 1))


def _compact(difference: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a difference in short form: rows as lists in the order of the columns, or null for no row."""
    rows = difference["rows"]
    compact = {
        "kind": listed_as(difference),
        "key": list(difference["key"].values()),
        "columns": [columns.index(name) for name in difference["columns"]],
        "rows": [None if row is None else [row.get(name) for name in columns] for row in rows.values()],
        "agree": difference["agree"],
    }
    if difference.get("copies"):
        compact["copies"] = list(difference["copies"].values())
    return compact


def _json(value: Any) -> str:
    """Return JSON in ASCII that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
