"""What the doctor is asked to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trueup.config.model import Config, Node
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.errors import TrueupError


@dataclass(frozen=True)
class DoctorRequest:
    """The nodes and tables that a run would work on, and how it would."""

    config: Config = field(default_factory=Config)
    # What was wrong with the configuration or the choice of nodes; then there are no nodes to look at.
    trouble: TrueupError | None = None
    nodes: tuple[Node, ...] = ()
    tables: tuple[str, ...] = ()
    settings: DiffSettings = field(default_factory=DiffSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    task_db: str | None = None
    start_spark: bool = True
    stats_days: int = 30
    # The two nodes of a switchover, if one is meant: from, to.
    switchover: tuple[str, ...] = ()
    # Variables that look like ours and mean nothing, and what was meant.
    strays: Mapping[str, str] = field(default_factory=dict)
