"""docs/api.md: every public name is on the page, and its examples work."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import trueup
from support.fixtures import Databases, OnAll

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, price numeric);
"""
ROWS = """
    INSERT INTO customers SELECT i, 'c' || i FROM generate_series(1, 50) i;
    INSERT INTO orders SELECT i, i / 4.0 FROM generate_series(1, 50) i;
"""


@pytest.mark.parametrize("name", trueup.__all__)
def test_a_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)


def test_the_page_uses_public_names_only() -> None:
    assert set(re.findall(r"\btrueup\.([A-Za-z_]+)\(", PAGE)) <= set(trueup.__all__)


def test_the_examples_run(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(3)
    on_all(nodes, TABLES)
    on_all(nodes[:2], ROWS)
    nodes[1].execute("UPDATE orders SET price = 0 WHERE id = 7")
    namespace: dict[str, object] = {}
    logger = logging.getLogger("trueup")
    handlers, level = list(logger.handlers), logger.level
    try:
        for match in re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL):
            code = match[1]
            for number, node in enumerate(nodes, 1):
                code = code.replace(f"postgresql://db{number}/shop", node.uri)
            # Blank lines before the code, so that a traceback shows the line of the page.
            line = PAGE[: match.start(1)].count("\n")
            exec(compile("\n" * line + code, "docs/api.md", "exec"), namespace)  # noqa: S102
    finally:
        logger.handlers, logger.level = handlers, level
