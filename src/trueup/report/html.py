"""The HTML report: one self-contained file, every value escaped, readable by its owner only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trueup.report.json_file import private_file

# A browser stays quick with this many rows of a pair; the JSON report has them all.
MOST_ROWS = 10_000


def write_html(report: Mapping[str, Any], path: Path) -> Path:
    """Write a report as a page; returns where it is."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("trueup.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("report.html.j2").generate(report=report, most=MOST_ROWS)
    with private_file(path) as file:
        for piece in page:
            # Text of a database may hold what no file can: half of a character pair.
            file.write(piece.encode("utf-8", "replace").decode("utf-8"))
    return path
