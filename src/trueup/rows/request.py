"""The request to compare one table: the table, the nodes, and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trueup.config.model import Config, Node
from trueup.config.settings import DiffSettings, ExpressionSettings, SparkSettings
from trueup.report.model import Mode
from trueup.rows.proven import Certifier, Prover


@dataclass(frozen=True)
class TableRequest:
    """One table, the nodes that have it, and how to compare its rows."""

    table: str
    nodes: tuple[Node, ...]
    cluster: str = ""
    settings: DiffSettings = field(default_factory=DiffSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    filter: str = ""
    # The functions that the filter, and the conditions of a repair plan, may call.
    expressions: ExpressionSettings = field(default_factory=ExpressionSettings)
    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    # Whether a run that finds no row is incomplete. None: if it has a filter.
    require_rows: bool | None = None
    digests_only: bool = False
    # The id of the task over many tables that this one is a part of.
    part_of: str = ""
    # The path of the report whose keys are compared again or repaired.
    rerun_of: str = ""
    # Knows blocks that are proven and need not be read. A resumed run reads them.
    prover: Prover | None = None
    # Records a MATCH as certificate. A resumed run, which has several snapshots, does not.
    certifier: Certifier | None = None

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes, in the order of the request."""
        return tuple(node.name for node in self.nodes)

    @property
    def mode(self) -> Mode:
        """The mode that reports name."""
        return "check" if self.digests_only else "rerun" if self.rerun_of else "diff"

    def context(self) -> dict[str, Any]:
        """Return the request as the task store keeps it: names and settings, without addresses."""
        return {
            "qualified_table": self.table,
            "mode": self.mode,
            **({"rerun_of": self.rerun_of} if self.rerun_of else {}),
            "nodes": ",".join(self.node_names),
            "table_filter": self.filter,
            "allow_functions": self.expressions.allow_functions,
            "columns": list(self.columns),
            "exclude_columns": list(self.exclude_columns),
            "key": list(self.key),
            "require_rows": self.require_rows,
            **{name: getattr(self.settings, name) for name in _KEPT},
            "engine": self.spark.engine,
            **({"part_of": self.part_of} if self.part_of else {}),
        }


# The settings that the task store keeps, so that the task can be resumed with them.
_KEPT = (
    "block_size",
    "override_block_size",
    "concurrency_factor",
    "compare_unit_size",
    "max_diff_rows",
    "max_connections",
    "recheck",
    "recheck_wait",
    "snapshot",
    "numeric",
    "digest",
    "block_timeout",
    "retries",
    "long_value",
    "report_dir",
    "output",
    "gentle",
    "gentle_seconds",
    "max_rows_per_second",
    "max_lag",
    "max_active_sessions",
    "max_lock_waits",
)


def request_again(context: Mapping[str, Any], cluster: str, config: Config) -> TableRequest:
    """Return the request of an earlier task, with the addresses of the current configuration."""
    kept = {name: context[name] for name in _KEPT if name in context}
    names = [name for name in str(context["nodes"]).split(",") if name]
    return TableRequest(
        table=str(context["qualified_table"]),
        nodes=config.select(None, names),
        cluster=cluster,
        settings=replace(config.diff, **kept),
        spark=replace(config.spark, engine=str(context["engine"])),
        filter=str(context["table_filter"]),
        expressions=config.expressions.with_functions(str(context.get("allow_functions", ""))),
        columns=tuple(context["columns"]),
        exclude_columns=tuple(context["exclude_columns"]),
        key=tuple(context["key"]),
        require_rows=context.get("require_rows"),
        digests_only=context["mode"] == "check",
        part_of=str(context.get("part_of", "")),
    )
