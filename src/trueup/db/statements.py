"""Load SQL from files: named statements in a `.sql` file next to the module that uses them."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_HEADING = re.compile(r"^-- name: (\w+)[^\n]*\n", re.MULTILINE)


@cache
def load(package: str, file: str) -> dict[str, LiteralString]:
    """Return the statements of one file by name; each starts after a line `-- name: NAME`."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    pieces = _HEADING.split(text)
    # Files of the package are as trusted as its code, so psycopg may treat them as literal strings.
    return {name: cast("LiteralString", body.strip()) for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
