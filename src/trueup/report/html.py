"""The HTML report: one self-contained file, every value escaped, readable by its owner only.

The differences are in the page once, as JSON that is not executed; the script shows a hundred of them at a time.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trueup.report.json_file import private_file
from trueup.report.page import Page
from trueup.report.text import difference_lines

if TYPE_CHECKING:
    from jinja2 import Environment

# Limits per pair and for the whole page, so that a browser stays fast. The JSON report has all differences.
MAX_ROWS = 10_000
MAX_BYTES = 40_000_000
# Differences per pair that are shown without scripts.
_PLAIN_ROWS = 50

Differences = Iterable[Mapping[str, Any]]
PairDifferences = tuple[str, Mapping[str, Any], Differences]


def write_html(path: Path, page: Page, pairs: Sequence[PairDifferences] = ()) -> Path:
    """Write a page and the differences of the pairs, as they come; return the path."""
    environment = _environment()
    style, script = (_file(environment, name) for name in ("report.css", "report.js"))
    plain: dict[str, list[Mapping[str, Any]]] = {}
    data = (Markup(piece) for piece in _data(page.data, pairs, plain)) if page.data is not None else None
    pieces = environment.get_template("report.html.j2").generate(
        page=page, style=style, script=script, policy=_policy(style, script), data=data, plain=plain
    )
    with private_file(path) as file:
        file.writelines(pieces)
    return path


def _environment() -> Environment:
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


def visible(value: Any) -> Any:
    """Return the text with control and direction characters written as escapes."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in value
    )


def _policy(style: str, script: str) -> str:
    """Return the content security policy: nothing is loaded, and only the script of this package runs."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _data(
    head: Mapping[str, Any], pairs: Sequence[PairDifferences], plain: dict[str, list[Mapping[str, Any]]]
) -> Iterator[str]:
    """Yield the data of the page; the first differences of each pair are added to `plain`."""
    columns, left = list(head["columns"]), MAX_BYTES
    yield f'{_json(head)[:-1]},"pairs":['
    for index, (pair, counts, differences) in enumerate(pairs):
        names = {"pair": pair, "nodes": _nodes_of(pair, head["nodes"]), **counts}
        names.pop("differences", None)
        yield f'{"," if index else ""}\n{_json(names)[:-1]},"differences":['
        # Each pair gets an equal share of the remaining bytes.
        used, share, count, cut = 0, left // (len(pairs) - index), 0, False
        for difference in differences:
            text = _json(_compact(difference, columns))
            if count == MAX_ROWS or used + len(text) > share:
                cut = True
                break
            yield f"{',' if count else ''}\n{text}"
            used, count = used + len(text), count + 1
            if count <= _PLAIN_ROWS:
                plain.setdefault(pair, []).append(difference)
        left -= used
        yield f'],"cut":{_json(cut)}}}'
    yield "]}"


def _nodes_of(pair: str, nodes: Sequence[str]) -> list[str]:
    """Return the two nodes of a pair; their names may contain a slash."""
    return next((list(two) for two in combinations(nodes, 2) if "/".join(two) == pair), pair.split("/", 1))


def _compact(difference: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a difference in short form: rows as lists in the order of the columns, or null for no row."""
    rows = difference["rows"]
    compact = {
        "kind": difference["kind"],
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
