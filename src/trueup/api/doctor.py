"""The doctor as a Python call: the same options as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from time import monotonic
from typing import Any

from trueup.config.load import load
from trueup.config.model import Config
from trueup.errors import ConfigError, TrueupError
from trueup.verbs.doctor.model import Diagnosis, Finding
from trueup.verbs.doctor.request import DoctorRequest
from trueup.verbs.doctor.run import examine

_OPTIONS = ("concurrency_factor", "max_connections", "report_dir", "engine", "master", "remote")


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
    strays: Mapping[str, str] | None = None,
    tell: Callable[[Finding], object] | None = None,
    **options: Any,
) -> Diagnosis:
    """Check whether a run on these nodes, and on these tables, would work here; nothing is changed anywhere.

    Nodes as for `diff`; `addresses` adds some to those of the configuration, to be named. Without `spark`, Spark is
    not started. `switchover` names two nodes, from and to, between which applications are to be moved. `tell` gets
    every finding as soon as it is known. Further options are settings that decide what a run
    would need: `engine`, `master`, `remote`, `report_dir`, `concurrency_factor`, `max_connections`.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]}", cure=f"there are {', '.join(_OPTIONS)}")
    begun = monotonic()
    request = replace(
        _request(nodes, addresses, cluster, config, options),
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
    return Diagnosis(tuple(findings), monotonic() - begun)


def _request(
    nodes: Mapping[str, str] | Sequence[str] | None,
    addresses: Mapping[str, str] | None,
    cluster: str | None,
    config: Config | str | None,
    options: Mapping[str, Any],
) -> DoctorRequest:
    """The request; a configuration that cannot be used is a finding, and the machine can be looked at all the same."""
    loaded = Config()
    try:
        given = nodes if isinstance(nodes, Mapping) else addresses
        loaded = config if isinstance(config, Config) else load(config, nodes=given)
        settings, spark = _changed(loaded.diff, options), _changed(loaded.spark, options)
        chosen = () if not (loaded.nodes or nodes or cluster) else loaded.select(cluster, list(nodes or ()), at_least=1)
        return DoctorRequest(loaded, None, chosen, settings=settings, spark=spark)
    except TrueupError as error:
        return DoctorRequest(loaded, error)


def _changed(settings: Any, options: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(settings)}
    given = {name: value for name, value in options.items() if name in known and value is not None}
    return replace(settings, **given).validated(lambda name: "--" + name.replace("_", "-"))
