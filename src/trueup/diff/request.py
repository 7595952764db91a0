"""What the user asked for, before anything is known of the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trueup.config.model import DiffSettings, Node, SparkSettings


@dataclass(frozen=True)
class DiffRequest:
    """One table, the nodes to compare, and how."""

    table: str
    nodes: tuple[Node, ...]
    cluster: str = ""
    settings: DiffSettings = field(default_factory=DiffSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    filter: str = ""
    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    digests_only: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' names in the order given."""
        return tuple(node.name for node in self.nodes)

    def context(self) -> dict[str, Any]:
        """The request as the task store keeps it: names and settings, no address."""
        settings = self.settings
        return {
            "qualified_table": self.table,
            "mode": "check" if self.digests_only else "diff",
            "nodes": ",".join(self.node_names),
            "table_filter": self.filter,
            "columns": list(self.columns),
            "exclude_columns": list(self.exclude_columns),
            "key": list(self.key),
            "block_size": settings.block_size,
            "concurrency_factor": settings.concurrency_factor,
            "compare_unit_size": settings.compare_unit_size,
            "max_diff_rows": settings.max_diff_rows,
            "max_connections": settings.max_connections,
            "recheck": settings.recheck,
            "recheck_wait": settings.recheck_wait,
            "snapshot": settings.snapshot,
            "numeric": settings.numeric,
            "output": settings.output,
            "engine": self.spark.engine,
        }
