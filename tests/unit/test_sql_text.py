"""SQL is ASCII: a server whose encoding lacks a character refuses the whole statement, even in a comment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / "src" / "trueup"
# Calls whose arguments are SQL, and annotations of constants that are.
CALLS = {"SQL", "execute", "executemany", "stream", "copy", "query", "_sql", "sql"}
ANNOTATIONS = ("LiteralString", "sql.SQL", "sql.Composed")


def sql_parts(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the arguments of calls that run or build SQL, and the constants of modules and classes that are SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield from node.args if name in CALLS else ()
        elif isinstance(node, ast.AnnAssign) and any(name in ast.unparse(node.annotation) for name in ANNOTATIONS):
            yield from [node.value] if node.value is not None else []
        elif isinstance(node, ast.Assign) and any(
            isinstance(name, ast.Name) and name.id.isupper() for name in node.targets
        ):
            text = "".join(strings(node.value))
            if text.lstrip().startswith(("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH ", "CREATE ", "SET ")):
                yield node.value


def strings(part: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression, also those of f-strings."""
    for node in ast.walk(part):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("file", sorted(HOME.rglob("*.sql")), ids=lambda file: file.name)
def test_files_are_ascii(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if not line.isascii()] == []


def test_statements_in_code_are_ascii() -> None:
    checked, found = 0, []
    for file in sorted(HOME.rglob("*.py")):
        for part in sql_parts(ast.parse(file.read_text(encoding="utf-8"))):
            texts = list(strings(part))
            checked += len(texts)
            found += [f"{file.relative_to(HOME)}:{part.lineno}: {text}" for text in texts if not text.isascii()]  # type: ignore[attr-defined]
    assert found == []
    assert checked > 500, "the test does not recognize statements any more"
