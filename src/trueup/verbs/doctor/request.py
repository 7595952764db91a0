"""What doctor checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trueup.config.model import Config, Node
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.errors import TrueupError


@dataclass(frozen=True)
class DoctorRequest:
    """The nodes, tables and settings of the run to check."""

    config: Config = field(default_factory=Config)
    # The error of the configuration or of the choice of nodes; then there are no nodes to check.
    error: TrueupError | None = None
    nodes: tuple[Node, ...] = ()
    tables: tuple[str, ...] = ()
    settings: DiffSettings = field(default_factory=DiffSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    task_db: str | None = None
    start_spark: bool = True
    stats_days: int = 30
    # The two nodes of a switchover (from, to), or empty.
    switchover: tuple[str, ...] = ()
    # Unknown variables with the prefix TRUEUP_, and the suggested name.
    strays: Mapping[str, str] = field(default_factory=dict)
