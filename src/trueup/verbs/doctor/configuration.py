"""Is the configuration read, and does it say what was meant?"""

from __future__ import annotations

from collections.abc import Iterator

from trueup.config.model import NODES_CURE
from trueup.verbs.doctor.model import Finding, failed, ok, warn
from trueup.verbs.doctor.request import DoctorRequest

CHECK = "configuration"


def check(request: DoctorRequest) -> Iterator[Finding]:
    """The file, who may read it, the nodes, and variables that mean nothing."""
    config = request.config
    where = config.path.name if config.path else "trueup.toml"
    if request.trouble is not None:
        yield failed(CHECK, where, request.trouble)
    elif config.path is None:
        yield ok(CHECK, where, "there is no file: defaults, variables and options are all there is")
    else:
        yield ok(CHECK, where, f"{config.path.absolute()} is read: {_listed(len(config.nodes), len(config.clusters))}")
    for warning in config.warnings:
        what, _, cure = warning.partition(": run ")
        yield warn(CHECK, where, what, f"run {cure}")
    for name, meant in request.strays.items():
        cure = f"did you mean {meant}?" if meant else "see `trueup COMMAND --help` for the names"
        yield warn(CHECK, name, "the variable is set, but nothing reads it", cure)
    if request.trouble is None and not request.nodes:
        yield warn(CHECK, "nodes", "no nodes are known: no server was looked at", NODES_CURE)
    elif len(request.nodes) == 1:
        name = request.nodes[0].name
        yield warn(CHECK, "nodes", f"only {name} is chosen: a comparison needs two nodes", NODES_CURE)


def _listed(nodes: int, clusters: int) -> str:
    return f"{nodes} node{'s' * (nodes != 1)}, {clusters} cluster{'s' * (clusters != 1)}"
