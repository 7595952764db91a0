"""What the user asked of a sync: the two nodes, the tables, and how to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trueup.config.model import Node
from trueup.config.settings import SparkSettings


@dataclass(frozen=True)
class Scope:
    """The name of a sync and its tables: all, or those in `tables`, without those in `exclude_tables`."""

    name: str = "main"
    tables: tuple[str, ...] = ()
    exclude_tables: tuple[str, ...] = ()
    create_schema: bool = False
    # With `create_schema`: create the roles that the target lacks; the role on the target owns all objects.
    create_roles: bool = False
    no_owner: bool = False
    # Of a started sync, by their oids on the source: its tables, whatever they are called now, and those that are not
    # in it although nothing above says so, with who decided that.
    members: frozenset[int] = frozenset()
    left_out: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_large_objects(self) -> bool:
        """Whether large objects are synced: with `tables` it is not known which of them belong to the sync."""
        return not self.tables


@dataclass(frozen=True)
class SyncRequest:
    """A sync from `source` to `target`."""

    source: Node
    target: Node
    scope: Scope = field(default_factory=Scope)
    spark: SparkSettings = field(default_factory=SparkSettings)
    concurrency_factor: float = 1.0
    max_connections: int = 0
    # Seconds to retry for the lock on each table in use, and to wait for transactions older than the change log.
    timeout: float = 300.0
    # The folder of pg_dump and pg_restore; empty: search for them.
    pg_bin: str = ""
    # Whether the name is that of the sync in its databases: see `naming`.
    is_identified: bool = False

    @property
    def name(self) -> str:
        """The name of the sync."""
        return self.scope.name

    @property
    def node_names(self) -> tuple[str, str]:
        """The names of both nodes, the source first."""
        return self.source.name, self.target.name
