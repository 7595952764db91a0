"""Errors can be sent to other processes: every class pickles with all fields, and shows its node and object."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from trueup import errors
from trueup.cli import main
from trueup.config.model import Node
from trueup.db.node import error_from_text
from trueup.errors import CheckFailed, ConfigError, EngineError, Interrupted, NodeError, QueryError, TrueupError

WHERE = {"cure": "do this", "node": "n1", "table": "public.t", "block": "block [1, 2)"}
CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, TrueupError) and found.__module__ == errors.__name__
]


def made(kind: type[TrueupError]) -> TrueupError:
    """Return an error of this class with a value in every field."""
    first: Any = ("one", "two") if kind is CheckFailed else "what happened"
    more = {"sqlstate": "57014"} if kind is QueryError else {}
    return kind(first, **WHERE, **more)


def test_all_classes_are_tested() -> None:
    assert len(CLASSES) >= 8
    assert {ConfigError, NodeError, CheckFailed, QueryError, Interrupted} <= set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_pickles_with_all_its_fields(kind: type[TrueupError], protocol: int) -> None:
    error = made(kind)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is kind
    assert vars(back) == vars(error)
    assert (str(back), back.args, back.exit_code) == (str(error), error.args, error.exit_code)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_field_set_later_is_pickled(kind: type[TrueupError]) -> None:
    error = made(kind)
    error.block = "another block"
    assert copy.copy(error).block == pickle.loads(pickle.dumps(error)).block == "another block"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_is_documented_in_the_tree(kind: type[TrueupError]) -> None:
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")


def test_exit_codes() -> None:
    assert {kind.__name__: kind.exit_code for kind in CLASSES if kind.exit_code != 2} == {"Interrupted": 130}


def test_an_error_has_its_node_and_object() -> None:
    assert str(NodeError("gone", node="n1", table="public.t")) == "node n1, public.t: gone"
    assert str(TrueupError("gone")) == "gone"
    assert CheckFailed(["one", "two"]).reasons == ("one", "two")


@pytest.mark.parametrize(
    ("arguments", "has_engine"),
    [
        (["diff", "t"], True),
        (["--log-format", "json", "validate", "start"], True),
        (["difflog", "run", "x"], False),
        (["difflog", "prove", "--log-level", "info", "x"], False),
    ],
)
def test_a_cure_names_only_options_of_the_command(
    arguments: list[str], has_engine: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise EngineError("the Spark job failed", cure="check the logs of the executors, or use --engine local")

    monkeypatch.setattr(main.trueup, "main", fail)
    assert main.run(arguments) == 2
    end = ", or use --engine local" if has_engine else ""
    assert f"what to do: check the logs of the executors{end}\n" in capfd.readouterr().err


def test_no_cure_grants_a_table_with_passwords() -> None:
    node = Node("n1", "host=x")
    secret = error_from_text("permission denied for table pg_subscription", "42501", node, lost=False)
    assert "do not grant" in (secret.cure or "")
    other = error_from_text("permission denied for table pg_subscription_rel", "42501", node, lost=False)
    assert other.cure == "grant the privilege that the message names"
