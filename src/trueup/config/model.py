"""The configuration as frozen dataclasses: nodes, clusters and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trueup.config import address
from trueup.config.secrets import Conninfo
from trueup.config.settings import DiffSettings, ExpressionSettings, SparkSettings, TaskSettings
from trueup.config.wording import problem, suggest

NODES_CURE = "Add --node NAME=URI for each node, or add the nodes to trueup.toml (`trueup init` writes that file)."


@dataclass(frozen=True)
class Node:
    """One database, by name and address (a libpq conninfo string or URI, also `service=...`)."""

    name: str
    # Pickled with its password on purpose: Spark workers open connections.
    conninfo: str = field(repr=False)

    def __post_init__(self) -> None:
        # Hides the password in the repr of the result of dataclasses.asdict, too.
        object.__setattr__(self, "conninfo", Conninfo(self.conninfo))

    @property
    def kind(self) -> str:
        """The kind of the node: postgresql, or one that only a diff or a check can read."""
        return address.kind_of(self.conninfo)

    def describe(self) -> str:
        """Return `n1 (user@host:port/dbname)`, without the password."""
        return f"{self.name} ({address.describe(self.conninfo)})"


@dataclass(frozen=True)
class Config:
    """The configuration, and the path of its file (None: there is no file)."""

    path: Path | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    diff: DiffSettings = field(default_factory=DiffSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    expressions: ExpressionSettings = field(default_factory=ExpressionSettings)
    warnings: tuple[str, ...] = ()

    def select(
        self, cluster: str | None = None, names: Sequence[str] | None = None, *, at_least: int = 2
    ) -> tuple[Node, ...]:
        """Return the nodes to use: the named ones in that order, else the nodes of the cluster, else all.

        Raises ConfigError for an unknown name or cluster, or for fewer nodes than `at_least`.
        """
        if cluster is None:
            allowed, place = tuple(self.nodes), "the configuration"
        elif cluster in self.clusters:
            allowed, place = self.clusters[cluster], f'the cluster "{cluster}"'
        else:
            cure = suggest(cluster, self.clusters)
            raise problem("", f'there is no cluster "{cluster}"', cure)
        chosen = tuple(names or ()) if tuple(names or ()) != ("all",) else ()
        _check_names(chosen, allowed, place)
        chosen = chosen or allowed
        if len(chosen) < at_least:
            known = f"there is only {', '.join(chosen)}" if chosen else "there is none"
            raise problem("", f"at least {at_least} node{'s' * (at_least > 1)} needed, {known}", NODES_CURE)
        return tuple(self.nodes[name] for name in chosen)


def _check_names(names: Sequence[str], allowed: Sequence[str], place: str) -> None:
    for position, name in enumerate(names):
        if name not in allowed:
            cure = suggest(name, allowed) if allowed else NODES_CURE
            raise problem("", f'there is no node "{name}" in {place}', cure)
        if name in names[:position]:
            raise problem("", f'the node "{name}" is listed twice', "List each node once.")
