"""The request of a comparison across kinds, and what all its steps share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.nodes.base import ComparedNode, Plan
from trueup.nodes.mapping import CompareMap
from trueup.report.extent import Extent
from trueup.rows.classes import type_text
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.task.compare.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trueup.nodes.frame import FrameSource


# Values in names of folders are texts: 01 is not 1.
_AS_WRITTEN = {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}


def check_settings(table: TableRequest) -> None:
    """Raise ConfigError for settings that a comparison across kinds would ignore."""
    settings = table.settings
    used = {
        "--gentle": settings.gentle,
        "--max-rows-per-second": settings.max_rows_per_second > 0,
        "--numeric representation": settings.numeric != "value",
        "diff.digest": settings.digest != "auto",
    }
    wrong = [name for name, is_used in used.items() if is_used]
    if wrong:
        message = f"{', '.join(wrong)} cannot be used with nodes of other kinds than PostgreSQL, or with other types"
        raise ConfigError(message, cure="leave it out")


def can_compare(table: TableRequest) -> bool:
    """Return whether the settings can be used to compare by value."""
    try:
        check_settings(table)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True)
class CompareRequest:
    """A table, and the frames of the program that are nodes, by name."""

    table: TableRequest
    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    map: CompareMap = field(default_factory=CompareMap)
    # Sources of frames, by the name of their node, which has the address frame:.
    sources: Mapping[str, FrameSource] = field(default_factory=dict)
    # Whether the queries of the mapping are of trueup itself, and were checked.
    has_checked_queries: bool = False
    # Returns those of the keys whose rows are on their way: they are in flight.
    in_flight: Callable[[Collection[KeyValues]], Collection[KeyValues]] | None = None


@dataclass
class Session:
    """The Spark session of a run, which starts when it is first needed."""

    request: CompareRequest
    stack: ExitStack
    _session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Return the session: that of the frames of the program, of this process, or a new one."""
        if self._session is None:
            from trueup.engine.bulk_session import changed_settings, spark_session

            given = next((frame.sparkSession for frame in self.request.frames.values()), None)
            session = self.stack.enter_context(spark_session(self.request.table.spark, given, copy=given is None))
            self.stack.enter_context(changed_settings(session, _AS_WRITTEN))
            self._session = session
        return self._session

    @property
    def is_used(self) -> bool:
        """Whether the session was needed."""
        return self._session is not None


@dataclass(frozen=True)
class RanOnSpark:
    """What has compared the rows."""

    session: Session
    remarks: Sequence[str] = ()

    @property
    def name(self) -> str:
        """`spark`, or `local` if the nodes themselves did all of the work."""
        return "spark" if self.session.is_used else "local"


@dataclass
class CompareRun:
    """One run: what is compared, on which nodes, and what was found."""

    request: TableRequest
    nodes: Sequence[ComparedNode]
    plan: Plan
    state: State
    session: Session
    progress: Progress
    # Sleeps, and raises Interrupted when the run is stopped.
    wait: Callable[[float], None]
    shown_table: tuple[str, str] = ("", "")
    # Whether all nodes are read at one moment each.
    is_held: bool = True
    # Whether rows are compared in this process, without Spark.
    is_local: bool = False
    in_flight: Callable[[Collection[KeyValues]], Collection[KeyValues]] | None = None
    # What the mapping selects on nodes, and what it compares instead of columns, in words.
    selected: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()

    @property
    def engine(self) -> RanOnSpark:
        """What has compared the rows."""
        return RanOnSpark(self.session)

    @property
    def spec(self) -> TableSpec:
        """The columns as a report names them."""
        columns = tuple(
            ColumnSpec(column.name, type_text(column.kind, column.parsed), "canonical", rule=column.rule or None)
            for column in self.plan.columns
        )
        return TableSpec(
            *self.shown_table,
            tuple(KeySpec(column) for column in columns[: self.plan.key]),
            columns,
            filter=self.request.filter,
            digest="canonical",
            seed=int.from_bytes(self.plan.seed, "big"),
            long_value=self.request.settings.long_value,
            left_out=self.plan.left_out,
        )

    @property
    def extent(self) -> Extent:
        """Which rows and columns are compared."""
        rules = tuple(f"rule for {column.name}: {column.rule}" for column in self.plan.columns if column.rule)
        return Extent(self.request.filter, self.selected, self.plan.left_out, (*rules, *self.instead))
