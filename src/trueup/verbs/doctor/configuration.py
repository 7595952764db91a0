"""Checks of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from trueup.config.model import NODES_CURE
from trueup.config.wording import counted
from trueup.verbs.doctor.model import DoctorRequest, Finding, failed, ok, warn

CHECK = "configuration"


def check(request: DoctorRequest) -> Iterator[Finding]:
    """Yield findings about the file, its permissions, the nodes, and unknown variables."""
    config = request.config
    where = config.path.name if config.path else "trueup.toml"
    if request.error is not None:
        yield failed(CHECK, where, request.error)
    elif config.path is None:
        yield ok(CHECK, where, "no configuration file: only defaults, variables and options are used")
    else:
        yield ok(CHECK, where, f"{config.path.absolute()}: {_listed(len(config.nodes), len(config.clusters))}")
    for warning in config.warnings:
        message, _, cure = warning.partition(": run ")
        yield warn(CHECK, where, message, f"run {cure}")
    for name, suggestion in request.strays.items():
        cure = f"did you mean {suggestion}?" if suggestion else "see `trueup COMMAND --help` for the names"
        yield warn(CHECK, name, "the variable is set, but trueup does not read it", cure)
    if request.error is None and not request.nodes:
        yield warn(CHECK, "nodes", "no nodes are configured: no server was checked", NODES_CURE)
    elif len(request.nodes) == 1:
        name = request.nodes[0].name
        yield warn(CHECK, "nodes", f"only {name} is selected: a comparison needs two nodes", NODES_CURE)


def _listed(nodes: int, clusters: int) -> str:
    return f"{counted(nodes, 'node')}, {counted(clusters, 'cluster')}"
