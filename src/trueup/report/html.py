"""The HTML report: one file that needs nothing else, every value escaped, readable by its owner only.

The differences stand in the page once, as JSON that no browser runs; its script shows a hundred of them at a time.
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

if TYPE_CHECKING:
    from jinja2 import Environment

# A browser stays quick with so many differences of a pair, and with so many bytes of them all. The JSON report has all.
MOST_ROWS = 10_000
MOST_BYTES = 40_000_000
# Differences of a pair for those who run no scripts.
_PLAIN_ROWS = 50

Differences = Iterable[Mapping[str, Any]]
PairDifferences = tuple[str, Mapping[str, Any], Differences]


def write_html(path: Path, page: Page, pairs: Sequence[PairDifferences] = ()) -> Path:
    """Write a page, and the differences of the pairs as they come; returns where it is."""
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

    from trueup.report.text import difference_lines

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
    """A file of ours that goes into the page as it is."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def visible(value: Any) -> Any:
    """A text of which every character can be seen: what could turn it around or hide in it is written out."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in value
    )


def _policy(style: str, script: str) -> str:
    """Nothing is fetched, nothing runs but our script, and that makes no HTML out of text."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _data(
    head: Mapping[str, Any], pairs: Sequence[PairDifferences], plain: dict[str, list[Mapping[str, Any]]]
) -> Iterator[str]:
    """The data of the page, piece by piece; the first differences of each pair are kept in `plain`."""
    columns, left = list(head["columns"]), MOST_BYTES
    yield f'{_json(head)[:-1]},"pairs":['
    for at, (pair, counts, differences) in enumerate(pairs):
        names = {"pair": pair, "nodes": _nodes_of(pair, head["nodes"]), **counts}
        names.pop("differences", None)
        yield f'{"," if at else ""}\n{_json(names)[:-1]},"differences":['
        # A pair with long values leaves the others their share.
        used, most, count, cut = 0, left // (len(pairs) - at), 0, False
        for each in differences:
            text = _json(_compact(each, columns))
            if count == MOST_ROWS or used + len(text) > most:
                cut = True
                break
            yield f"{',' if count else ''}\n{text}"
            used, count = used + len(text), count + 1
            if count <= _PLAIN_ROWS:
                plain.setdefault(pair, []).append(each)
        left -= used
        yield f'],"cut":{_json(cut)}}}'
    yield "]}"


def _nodes_of(pair: str, nodes: Sequence[str]) -> list[str]:
    """The two nodes of a pair; their names may hold a slash."""
    return next((list(two) for two in combinations(nodes, 2) if "/".join(two) == pair), pair.split("/", 1))


def _compact(difference: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """A difference as the page keeps it: rows as lists in the order of the columns, or null where there is none."""
    rows = difference["rows"]
    found = {
        "kind": difference["kind"],
        "key": list(difference["key"].values()),
        "columns": [columns.index(name) for name in difference["columns"]],
        "rows": [None if row is None else [row.get(name) for name in columns] for row in rows.values()],
        "agree": difference["agree"],
    }
    if difference.get("copies"):
        found["copies"] = list(difference["copies"].values())
    return found


def _json(value: Any) -> str:
    """JSON in ASCII that can stand inside a script element: nothing in it ends one or begins another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
