"""The public API: real signatures, docstrings, and the same parameter names with the same types everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass

import trueup

# Functions that pass keywords on, and to what.
PASSED_ON = {"connect": "psycopg.connect"}

# Parameter -> the types that it has in public functions and methods.
TYPES = {
    # The configuration of a version log is another file.
    "config": {"Config | str | None", "str | None", "File | DiffLogConfig | None"},
    "cluster": {"str | None"},
    "nodes": {
        "Mapping[str, str] | Sequence[str] | None",
        "Mapping[str, str] | None",
        # A frame of Spark can be a node of a diff.
        "Mapping[str, str | DataFrame] | Sequence[str] | None",
        # A collection of nodes that are open already.
        "Mapping[str, Node] | None",
        "Mapping[str, Node]",
    },
    "node": {"str", "str | None", "str | Node | None"},
    "task_db": {"str | None"},
    "progress": {"Progress | None"},
    "timeout": {"float"},
    "execute": {"bool"},
    "report_dir": {"str | None"},
    "columns": {"Sequence[str]", "Sequence[str] | None"},
    "exclude_columns": {"Sequence[str]", "Sequence[str] | None"},
    "tables": {"Sequence[str]", "Sequence[str] | None"},
    "exclude_tables": {"Sequence[str]", "Sequence[str] | None"},
}


def public() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield every public function and every public method of a class that is no error and no result."""
    for name in trueup.__all__:
        thing = getattr(trueup, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing) and not issubclass(thing, Exception) and not is_dataclass(thing):
            for attribute, method in vars(thing).items():
                function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
                if inspect.isfunction(function) and (not attribute.startswith("_") or attribute == "__init__"):
                    yield f"{name}.{attribute}", function


FUNCTIONS = dict(public())


SIGNATURES = {name: inspect.signature(function) for name, function in FUNCTIONS.items()}


def test_parameters_are_named() -> None:
    for name, signature in SIGNATURES.items():
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        assert inspect.Parameter.VAR_KEYWORD not in kinds or name in PASSED_ON, name


def test_parameters_have_types() -> None:
    for name, signature in SIGNATURES.items():
        for parameter in list(signature.parameters.values())[1 if "." in name else 0 :]:
            assert parameter.annotation is not inspect.Parameter.empty, (name, parameter.name)
        assert signature.return_annotation is not inspect.Signature.empty, name


def test_a_parameter_has_the_same_type_everywhere() -> None:
    for name, signature in SIGNATURES.items():
        for parameter in signature.parameters.values():
            is_list = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            if parameter.name in TYPES and not name.startswith("TaskStore.") and not is_list:
                assert parameter.annotation in TYPES[parameter.name], (name, parameter.name)


def test_every_public_name_has_a_docstring() -> None:
    for name in sorted({*trueup.__all__, *(each for each in FUNCTIONS if "__init__" not in each)}):
        thing = FUNCTIONS.get(name) or getattr(trueup, name)
        text = inspect.getdoc(thing) or ""
        assert text.split("\n\n")[0].rstrip().endswith("."), (name, text)
        # A dataclass without a docstring shows its signature.
        assert not text.startswith(f"{name}("), name
