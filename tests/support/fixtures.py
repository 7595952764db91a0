"""The types of the fixtures that all tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from trueup.report.model import DiffResult
from trueup.testing.postgres import Database, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark: TypeAlias = "SparkSession"
Databases: TypeAlias = Callable[[int], list[Database]]
OnAll: TypeAlias = Callable[[Sequence[Database], str], None]
ReportOf: TypeAlias = Callable[[DiffResult], dict[str, Any]]
FreshServer: TypeAlias = Callable[..., Server]
# `put(set, source, rows, schema=…)`: write a chunk of a version log.
Put: TypeAlias = Callable[..., Path]

# The test runs once on threads and once in the shared Spark session.
both_engines = pytest.mark.parametrize("engine", ["local", "spark"], indirect=True)

# `compare(databases, table, **options)`: a diff, or with `quick=True` a check, of nodes n1, n2, and so on.
Compare: TypeAlias = Callable[..., DiffResult]


@dataclass(frozen=True)
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return stdout, which must be one JSON value and nothing else."""
        return json.loads(self.out)


Cli: TypeAlias = Callable[..., Ran]
