"""The house keeps its order: imports go downward, every module says what it is for, public names are public."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import trueup

HOME = Path(trueup.__file__).parent
MODULES = sorted(HOME.rglob("*.py"))
VERBS = {"diff", "repair", "tube", "switchover", "validate", "difflog", "doctor", "schema", "schedule"}
# A verb that may look at others: repair reads the diff's result and what a validation found, the doctor asks their
# checks, the gate of a switchover asks two verbs, and the change log of a sync is a tube. The stream of a tube names
# its node as the format "trueup" does. Validate reads tubes where the log is not logical, and streams changes with the
# public source.
ALLOWED_VERBS = {
    "repair": {"diff", "validate"},
    "doctor": {"diff", "switchover"},
    "switchover": {"validate", "diff", "tube"},
    "tube": {"source"},
    "validate": {"tube", "source"},
}

# Folder -> what it may import of trueup. The order of the design: cli, web -> verbs -> rows -> engine, store, report
# -> db -> config -> errors.
_BELOW_DB = {"errors", "config"}
_BELOW_MIDDLE = {*_BELOW_DB, "db"}
_BELOW_ROWS = {*_BELOW_MIDDLE, "engine", "store", "report"}
_BELOW_VERBS = {*_BELOW_ROWS, "rows"}
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "db": _BELOW_DB,
    "engine": _BELOW_MIDDLE,
    "store": _BELOW_MIDDLE,
    "report": _BELOW_MIDDLE,
    "rows": _BELOW_ROWS,
    # Public, and for the verbs to read with.
    "source": _BELOW_VERBS,
    **{verb: _BELOW_VERBS | ALLOWED_VERBS.get(verb, set()) for verb in VERBS},
    # What Spark is given: of several folders.
    "formats": {*_BELOW_DB, "source", "tube"},
    "demo": {*_BELOW_VERBS, *VERBS},
    "cli": {*_BELOW_VERBS, *VERBS, "demo", "web"},
    "web": {*_BELOW_VERBS, *VERBS},
    "__main__": {"cli"},
}


def name_of(path: Path) -> str:
    parts = ["trueup", *path.relative_to(HOME).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Every module of trueup that a file imports, also inside functions and for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "trueup")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            if node.module == "trueup":
                yield from (f"trueup.{alias.name}" for alias in node.names)
            elif node.module and node.module.startswith("trueup."):
                yield node.module


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_downward_only(path: Path) -> None:
    folder = name_of(path).split(".")[1] if path != HOME / "__init__.py" else ""
    if not folder:
        return
    assert folder in MAY_IMPORT, f"{folder} has no place in the order of the layers"
    allowed = {*MAY_IMPORT[folder], folder, "__version__"}
    wrong = [name for name in imported(path) if name.split(".")[1] not in allowed]
    assert wrong == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree)
    assert text
    assert text.splitlines()[0].strip()
    assert "from __future__ import annotations" in path.read_text(encoding="utf-8")


def test_only_main_turns_errors_into_exit_codes() -> None:
    for path in MODULES:
        calls = [
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ]
        if {"sys.exit", "exit", "os._exit"} & set(calls):
            # A watchdog process of the demo is a program of its own.
            assert name_of(path) in ("trueup.cli.main", "trueup.demo.processes")


def test_the_public_names_are_exactly_those_of_all() -> None:
    assert trueup.__all__ == sorted(trueup.__all__)
    assert len(set(trueup.__all__)) == len(trueup.__all__)
    for name in trueup.__all__:
        assert getattr(trueup, name) is not None
    typed = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((HOME / "__init__.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trueup")
        for alias in node.names
    }
    assert typed == set(trueup.__all__)


def test_public_names_come_from_the_modules_that_type_checkers_see() -> None:
    for node in ast.walk(ast.parse((HOME / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trueup"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if alias.name not in ("diff", "doctor", "repair", "tube"):  # modules
                    assert getattr(trueup, alias.name) is getattr(module, alias.name)
    assert callable(trueup.diff)
    assert callable(trueup.repair)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trueup.nothing
