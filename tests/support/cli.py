"""The types of the fixtures for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from trueup.testing.postgres import Database

NodeOptions: TypeAlias = Callable[[Sequence[Database]], list[str]]
# `write_config(databases, more="", folder=…, name=…)`
WriteConfig: TypeAlias = Callable[..., Path]
