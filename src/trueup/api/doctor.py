"""`trueup.doctor`: check whether a run would work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Literal

from trueup.config.load import load
from trueup.config.model import Config
from trueup.errors import TrueupError
from trueup.verbs.doctor.model import Diagnosis, Finding
from trueup.verbs.doctor.request import DoctorRequest
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
    diff_options = {
        "report_dir": report_dir,
        "concurrency_factor": concurrency_factor,
        "max_connections": max_connections,
    }
    spark_options = {"engine": engine, "master": master, "remote": remote}
    request = replace(
        _request(nodes, addresses, cluster, config, _present(diff_options), _present(spark_options)),
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


def _present(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _request(
    nodes: Mapping[str, str] | Sequence[str] | None,
    addresses: Mapping[str, str] | None,
    cluster: str | None,
    config: Config | str | None,
    diff_options: Mapping[str, object],
    spark_options: Mapping[str, object],
) -> DoctorRequest:
    """Return the request; an unusable configuration becomes its error, so that the machine is checked anyway."""
    loaded = Config()
    try:
        inline = nodes if isinstance(nodes, Mapping) else addresses
        loaded = config if isinstance(config, Config) else load(config, nodes=inline)
        settings = replace(loaded.diff, **diff_options).validated(_option_name)  # type: ignore[arg-type]
        spark = replace(loaded.spark, **spark_options).validated(_option_name)  # type: ignore[arg-type]
        has_nodes = loaded.nodes or nodes or cluster
        selected = loaded.select(cluster, list(nodes or ()), at_least=1) if has_nodes else ()
        return DoctorRequest(loaded, None, selected, settings=settings, spark=spark)
    except TrueupError as error:
        return DoctorRequest(loaded, error)


def _option_name(name: str) -> str:
    return "--" + name.replace("_", "-")
