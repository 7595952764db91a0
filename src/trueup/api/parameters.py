"""Shared by the functions of the API: parameters that several functions have, and the configuration of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from trueup.config.load import load
from trueup.config.model import Config

P = ParamSpec("P")
R = TypeVar("R")


def same_parameters(model: Callable[P, object]) -> Callable[[Callable[[dict[str, Any]], R]], Callable[P, R]]:
    """Return a decorator: the function has the parameters of `model`, and is called with all their values by name."""
    signature = inspect.signature(model)

    def decorate(function: Callable[[dict[str, Any]], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            return function(bound.arguments)

        annotation = inspect.signature(function).return_annotation
        vars(call)["__signature__"] = signature.replace(return_annotation=annotation)
        return call

    return decorate


def configuration(
    config: Config | str | None, nodes: Mapping[str, str] | None = None, *, allow_functions: Sequence[str] = ()
) -> Config:
    """Return the configuration of a call: the object, or that of the file, with these nodes and functions added."""
    loaded = config if isinstance(config, Config) else load(config, nodes=nodes)
    return (
        replace(loaded, expressions=loaded.expressions.with_functions(allow_functions)) if allow_functions else loaded
    )
