"""`trueup.doctor`: check whether a run would work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Literal

from trueup.api.diff import settings_of
from trueup.api.parameters import configuration
from trueup.config.model import Config
from trueup.errors import TrueupError
from trueup.verbs.doctor.model import Diagnosis, DoctorRequest, Finding
from trueup.verbs.doctor.run import examine


def doctor(
    *tables: str,
    nodes: Mapping[str, str] | Sequence[str] | None = None,
    addresses: Mapping[str, str] | None = None,
    cluster: str | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    spark: bool = True,
    stats_days: int = 30,
    switchover: Sequence[str] = (),
    engine: Literal["auto", "spark", "local"] | None = None,
    master: str | None = None,
    remote: str | None = None,
    report_dir: str | None = None,
    concurrency_factor: float | None = None,
    max_connections: int | None = None,
    strays: Mapping[str, str] | None = None,
    tell: Callable[[Finding], object] | None = None,
) -> Diagnosis:
    """Check whether a run on these nodes and tables would work, and return the findings. Changes nothing.

    Nodes as for `diff`; `addresses` adds nodes to those of the configuration. With `spark=False`, Spark is not started.
    `switchover` names two nodes (from, to) to check for a switchover. `tell` is called with every finding as soon as
    it is known. The other parameters override the configuration, whose errors are findings too.
    """
    started = monotonic()
    request = replace(
        _request(locals()),
        tables=tables,
        task_db=task_db,
        start_spark=spark,
        stats_days=stats_days,
        switchover=tuple(switchover),
        strays=strays or {},
    )
    findings: list[Finding] = []
    for finding in examine(request):
        findings.append(finding)
        if tell is not None:
            tell(finding)
    return Diagnosis(tuple(findings), monotonic() - started)


def _request(options: Mapping[str, Any]) -> DoctorRequest:
    """Return the request; an unusable configuration becomes its error, so that the machine is checked anyway."""
    loaded = Config()
    nodes, cluster = options["nodes"], options["cluster"]
    try:
        loaded = configuration(options["config"], nodes if isinstance(nodes, Mapping) else options["addresses"])
        settings, spark = settings_of(loaded, options)
        has_nodes = loaded.nodes or nodes or cluster
        selected = loaded.select(cluster, list(nodes or ()), at_least=1) if has_nodes else ()
        return DoctorRequest(loaded, None, selected, settings=settings, spark=spark)
    except TrueupError as error:
        return DoctorRequest(loaded, error)
