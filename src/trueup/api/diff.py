"""`trueup.diff`, `check`, `rerun`, `resume` and the functions for many tables: the commands as Python functions.

Parameters that are None have the value of the configuration. A function with settings as parameters is one statement,
which passes on `locals()`: exactly its parameters, by name. Each is a setting, or is read by its name below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trueup.api.parameters import configuration, same_parameters
from trueup.config.address import POSTGRESQL
from trueup.config.load import load
from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.db.names import parse_column_names
from trueup.db.patterns import parse_patterns
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.nodes.mapping import CompareMap, load_map, parse_map
from trueup.report.model import DiffResult, ManyResult
from trueup.rows.request import TableRequest, request_again
from trueup.store import TaskStore
from trueup.task.past import find_report, read_past, request_of
from trueup.task.past_run import PastRun, find_run
from trueup.verbs.compare.request import CompareRequest, can_compare
from trueup.verbs.diff import many
from trueup.verbs.diff import rerun as rerun_verb
from trueup.verbs.diff import run as one
from trueup.verbs.diff.rerun_many import RerunRequest, rerun_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trueup.task.open import OpenTask
    from trueup.verbs.compare.explain import Explanation

S = TypeVar("S", DiffSettings, SparkSettings)

# The types of tasks of one table, and of many.
_ONE = ("TABLE_DIFF", "TABLE_CHECK")
_MANY = ("TABLES_DIFF", "TABLES_CHECK")
# Settings that are not options of the command line.
_NO_OPTIONS = ("min_block_size", "max_block_size", "digest", "retries", "long_value")


def diff(
    table: str,
    *,
    nodes: Mapping[str, str | DataFrame] | Sequence[str] | None = None,
    cluster: str | None = None,
    config: Config | str | None = None,
    filter: str = "",
    allow_functions: Sequence[str] = (),
    columns: Sequence[str] = (),
    exclude_columns: Sequence[str] = (),
    key: Sequence[str] = (),
    since_proof: str = "",
    certify: str = "",
    require_rows: bool | None = None,
    map: str | Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
    block_size: int | None = None,
    min_block_size: int | None = None,
    max_block_size: int | None = None,
    override_block_size: bool | None = None,
    compare_unit_size: int | None = None,
    max_diff_rows: int | None = None,
    concurrency_factor: float | None = None,
    max_connections: int | None = None,
    recheck: int | None = None,
    recheck_wait: float | None = None,
    snapshot: bool | None = None,
    numeric: str | None = None,
    digest: str | None = None,
    block_timeout: float | None = None,
    retries: int | None = None,
    long_value: int | None = None,
    gentle: bool | None = None,
    gentle_seconds: float | None = None,
    max_rows_per_second: int | None = None,
    max_lag: float | None = None,
    max_active_sessions: int | None = None,
    max_lock_waits: int | None = None,
    report_dir: str | None = None,
    output: str | Sequence[str] | None = None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> DiffResult:
    """Compare a table on two or more nodes, down to the rows that differ, and write a report.

    `since_proof` is the name of a validation: only blocks that changes touched since its certificate are read, if it
    holds; else all of them. A marker is written to the logs of both nodes then. `certify` is the name of a validation:
    the verdict MATCH is recorded as its certificate of the table, or `certified` of the result has the reason why not.
    `require_rows`: a run that finds no row on any node is INCOMPLETE; by default, if it has a filter.

    Give nodes as `nodes={"n1": "postgresql://…", …}`, or by name (`nodes=["n1", "n2"]` or `cluster="acctg"`) from the
    configuration (`config="trueup.toml"`, or a `Config`). An address may name a node of another kind, such as
    `delta:/lake/orders`, and a frame of Spark may be given instead of an address. The other parameters are the options
    of `trueup diff`.

    Raises ConfigError on wrong options, CheckFailed if the tables cannot be compared, NodeError if a node cannot be
    reached. Blocks that could not be compared are in `incomplete` of the result, whose verdict is then INCOMPLETE.
    """
    return _compare_one(locals(), digests_only=False)


@same_parameters(diff)
def check(options: dict[str, Any]) -> DiffResult:
    """Check whether a table is equal on all nodes, by digests; no rows are read and no report is written.

    Parameters and errors are those of `diff`.
    """
    return _compare_one(options, digests_only=True)


def diff_many(
    *,
    schemas: Sequence[str] = (),
    tables: Sequence[str] = (),
    exclude_tables: Sequence[str] = (),
    exclude_tables_file: str | None = None,
    nodes: Mapping[str, str] | Sequence[str] | None = None,
    cluster: str | None = None,
    config: Config | str | None = None,
    filter: str = "",
    allow_functions: Sequence[str] = (),
    columns: Sequence[str] = (),
    exclude_columns: Sequence[str] = (),
    key: Sequence[str] = (),
    since_proof: str = "",
    certify: str = "",
    require_rows: bool | None = None,
    block_size: int | None = None,
    min_block_size: int | None = None,
    max_block_size: int | None = None,
    override_block_size: bool | None = None,
    compare_unit_size: int | None = None,
    max_diff_rows: int | None = None,
    concurrency_factor: float | None = None,
    max_connections: int | None = None,
    recheck: int | None = None,
    recheck_wait: float | None = None,
    snapshot: bool | None = None,
    numeric: str | None = None,
    digest: str | None = None,
    block_timeout: float | None = None,
    retries: int | None = None,
    long_value: int | None = None,
    gentle: bool | None = None,
    gentle_seconds: float | None = None,
    max_rows_per_second: int | None = None,
    max_lag: float | None = None,
    max_active_sessions: int | None = None,
    max_lock_waits: int | None = None,
    report_dir: str | None = None,
    output: str | Sequence[str] | None = None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> ManyResult:
    """Compare all tables that match, several at once, and write a report per table and a summary.

    `schemas=["public"]` and `tables=["public.*", "sales.order_??"]` select tables, `exclude_tables` and
    `exclude_tables_file` exclude some of them. The other parameters are those of `diff`. A table that cannot be
    compared is INCOMPLETE in the result, and does not stop the others.
    """
    return _compare_many(locals(), digests_only=False)


@same_parameters(diff_many)
def check_many(options: dict[str, Any]) -> ManyResult:
    """Check whether all tables that match are equal on all nodes, by digests.

    Parameters are those of `diff_many`.
    """
    return _compare_many(options, digests_only=True)


def rerun(
    report: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    allow_functions: Sequence[str] = (),
    concurrency_factor: float | None = None,
    max_connections: int | None = None,
    recheck: int | None = None,
    recheck_wait: float | None = None,
    snapshot: bool | None = None,
    report_dir: str | None = None,
    output: str | Sequence[str] | None = None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> DiffResult:
    """Compare the keys of a past report again, and no others, and write a new report.

    `report` is the path of a JSON report, or the id of its task. Table, nodes and columns are those of the report; the
    nodes' addresses are those of `nodes` or of the configuration. Raises StoreError if the report cannot be read.
    """
    return cast("DiffResult", _rerun(locals(), runs=False))


@same_parameters(rerun)
def rerun_many(options: dict[str, Any]) -> ManyResult:
    """Compare the keys of all tables of a past run over many tables again; parameters as for `rerun`.

    `report` is the path of the summary of the run, or the id of its task. Tables that the run could not compare are
    INCOMPLETE; tables that matched have no keys and are not compared.
    """
    return cast("ManyResult", _rerun(options, tables=False))


@same_parameters(rerun)
def rerun_any(options: dict[str, Any]) -> DiffResult | ManyResult:
    """Compare the keys of a past report or of a past run again; parameters as for `rerun`."""
    return _rerun(options)


def resume(
    task: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> DiffResult:
    """Continue a diff or check of one table that was interrupted or failed, without its finished blocks.

    `task` is the id of the task, or the start of it. Table, nodes and settings are those of the task; the nodes'
    addresses are those of `nodes` or of the configuration. Raises CheckFailed if the table has changed.
    """
    result = resume_any(task, nodes=nodes, config=config, task_db=task_db, progress=progress, task_types=_ONE)
    return cast("DiffResult", result)


@same_parameters(resume)
def resume_many(options: dict[str, Any]) -> ManyResult:
    """Continue a diff or check of many tables, without its finished tables; parameters as for `resume`."""
    return cast("ManyResult", resume_any(**options, task_types=_MANY))


def resume_any(
    task: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    task_types: Sequence[str] = (*_ONE, *_MANY),
) -> DiffResult | ManyResult:
    """Continue a diff or check of one table or of many."""
    config = configuration(config, nodes)
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        earlier = store.get(task)
        if earlier.task_type not in task_types:
            message = f"task {earlier.task_id[:8]} is not a diff or check: its type is {earlier.task_type}"
            raise ConfigError(message, cure="list the tasks with: trueup tasks")
        if earlier.task_context.get("kinds"):
            message = f"task {earlier.task_id[:8]} has nodes of other kinds than PostgreSQL, and cannot be continued"
            raise ConfigError(message, cure="run the command again without --resume")
        if earlier.task_type in _MANY:
            return many.resume_many(many.many_again(earlier, config), earlier, store=store, progress=progress)
        request = request_again(earlier.task_context, earlier.cluster_name, config)
        by_value = partial(_compare_by_value, CompareRequest(request)) if can_compare(request) else None
        return one.resume(request, earlier, store=store, progress=progress, by_value=by_value)


def _compare_one(options: Mapping[str, Any], *, digests_only: bool) -> DiffResult:
    options, frames = _without_frames(options)
    request, config = _request(options["table"], options, digests_only=digests_only)
    with TaskStore(options["task_db"], configured=config.tasks.task_db) as store:
        if options["map"] is not None or options["query"] or any(node.kind != POSTGRESQL for node in request.nodes):
            for option in ("since_proof", "certify"):
                if options[option]:
                    cure = "leave out --map, --query and nodes of other kinds"
                    raise ConfigError(f"{_option(option)} is for tables of PostgreSQL", cure=cure)
            compared = _compare_request(request, frames, options, config)
            return _compare_nodes(compared, store, options["progress"])
        by_value = partial(_compare_by_value, CompareRequest(request)) if can_compare(request) else None
        return one.run(request, store=store, progress=options["progress"], by_value=by_value)


# These import what they need when it is needed: Arrow and the validation take longer to import than the comparison of a
# small table takes.
def _compare_nodes(request: CompareRequest, store: TaskStore, progress: Progress | None) -> DiffResult:
    from trueup.verbs.compare.run import run

    return run(request, store=store, progress=progress)


def _compare_by_value(request: CompareRequest, task: OpenTask) -> DiffResult:
    from trueup.verbs.compare.run import run_in

    return run_in(request, task)


def _with_prover(request: TableRequest, config: Config, validation: str) -> TableRequest:
    from trueup.api.since_proof import ValidationProver

    return replace(request, prover=ValidationProver(config, validation))


def _with_certifier(request: TableRequest, config: Config, validation: str) -> TableRequest:
    from trueup.verbs.validate.proving.record import Recorder

    return replace(request, certifier=Recorder(config, validation))


def _compare_request(
    request: TableRequest, frames: Mapping[str, DataFrame], options: Mapping[str, Any], config: Config
) -> CompareRequest:
    given = options["map"]
    mapping = CompareMap()
    if given is not None:
        mapping = load_map(given, config.path) if isinstance(given, str) else parse_map(given)
    mapping = mapping.with_queries(options["query"] or {})
    table = request.table or mapping.table
    if not table and all(mapping.node(node.name).query for node in request.nodes):
        table = "query"
    if not table:
        raise ConfigError("no table is named", cure="name it as argument, or as table in the mapping")
    return CompareRequest(replace(request, table=table), frames, mapping)


@same_parameters(diff)
def explain(options: dict[str, Any]) -> Explanation:
    """Return how `diff` would compare a table: columns, types, classes and rules. No rows are read.

    Parameters and errors are those of `diff`.
    """
    from trueup.verbs.compare.explain import explain as explained

    addressed, frames = _without_frames(options)
    request, config = _request(addressed["table"], addressed, digests_only=False)
    return explained(_compare_request(request, frames, addressed, config))


def _without_frames(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, DataFrame]]:
    """Return the options with an address for each frame among the nodes, and the frames."""
    nodes = options["nodes"]
    if not isinstance(nodes, Mapping):
        return options, {}
    frames = {name: node for name, node in nodes.items() if not isinstance(node, str)}
    for name, frame in frames.items():
        if not hasattr(frame, "sparkSession"):
            message = f"node {name}: expected an address or a frame of Spark, found {type(frame).__name__}"
            raise ConfigError(message, cure="see docs/api.md")
    addresses = {name: "frame:" if name in frames else node for name, node in nodes.items()}
    return {**options, "nodes": addresses}, frames


def _compare_many(options: Mapping[str, Any], *, digests_only: bool) -> ManyResult:
    patterns = parse_patterns(
        schemas=options["schemas"],
        tables=options["tables"],
        skip=options["exclude_tables"],
        skip_file=options["exclude_tables_file"] or "",
    )
    if not patterns.take:
        raise ConfigError("no tables are selected", cure="use --schema public, or --tables 'public.*'")
    request, config = _request("", options, digests_only=digests_only)
    with TaskStore(options["task_db"], configured=config.tasks.task_db) as store:
        return many.run_many(many.ManyRequest(patterns, request), store=store, progress=options["progress"])


def _rerun(options: Mapping[str, Any], *, tables: bool = True, runs: bool = True) -> DiffResult | ManyResult:
    """Compare the keys of a report again: of one table unless not `tables`, of a run unless not `runs`."""
    config = configuration(options["config"], options["nodes"], allow_functions=options["allow_functions"])
    settings, spark = settings_of(config, options)
    with TaskStore(options["task_db"], configured=config.tasks.task_db) as store:
        run = find_run(options["report"], store)
        check_kind(options["report"], run, tables=tables, runs=runs)
        if run is not None:
            request = RerunRequest(run, config, settings, spark)
            return rerun_run(request, store=store, progress=options["progress"])
        past = read_past(find_report(options["report"], store))
        table = request_of(past, config, settings, spark)
        return rerun_verb.run(table, past, store=store, progress=options["progress"])


def check_kind(report: str, run: PastRun | None, *, tables: bool, runs: bool) -> None:
    """Raise ConfigError if a report is not of the kind that a function takes: of one table, or of a run."""
    if run is not None and not runs:
        raise ConfigError(f"{report} is a run over many tables", cure="call the function whose name ends with _many")
    if run is None and not tables:
        raise ConfigError(
            f"{report} is not a run over many tables", cure="call the function whose name does not end with _many"
        )


def _request(table: str, options: Mapping[str, Any], *, digests_only: bool) -> tuple[TableRequest, Config]:
    """Return the request for a table, and the configuration."""
    config, nodes = options["config"], options["nodes"]
    addresses = nodes if isinstance(nodes, Mapping) else None
    if not isinstance(config, Config):
        config = load(config, nodes=addresses)
    elif addresses:
        raise ConfigError("addresses cannot be combined with a Config", cure="add the nodes to the Config")
    config = configuration(config, allow_functions=options["allow_functions"])
    settings, spark = settings_of(config, options)
    columns, exclude_columns = options["columns"], options["exclude_columns"]
    if not (columns or exclude_columns):
        columns, exclude_columns = parse_column_names(settings.columns), parse_column_names(settings.exclude_columns)
    if columns and exclude_columns:
        raise ConfigError("--columns and --exclude-columns cannot be combined", cure="remove one of them")
    request = TableRequest(
        table=table,
        nodes=config.select(options["cluster"], list(nodes) if nodes else None),
        cluster=options["cluster"] or "",
        settings=settings,
        spark=spark,
        filter=options["filter"] or settings.table_filter,
        expressions=config.expressions,
        columns=tuple(columns),
        exclude_columns=tuple(exclude_columns),
        key=tuple(options["key"]) or parse_column_names(settings.key),
        require_rows=options["require_rows"],
        digests_only=digests_only,
    )
    if options["since_proof"]:
        if not settings.snapshot:
            cure = "leave out --no-snapshot"
            raise ConfigError("--since-proof needs a snapshot of each node", cure=cure)
        if options["certify"]:
            cure = "leave out one of them"
            raise ConfigError("--certify and --since-proof cannot be combined", cure=cure)
        request = _with_prover(request, config, options["since_proof"])
    if options["certify"]:
        request = _with_certifier(request, config, options["certify"])
    return request, config


def settings_of(config: Config, options: Mapping[str, Any]) -> tuple[DiffSettings, SparkSettings]:
    """Return the settings of the configuration, changed by the options that are not None."""
    output = options.get("output")
    # Columns and key of a call are part of the request.
    changes = {name: value for name, value in options.items() if name not in ("columns", "exclude_columns", "key")}
    changes["output"] = (",".join(output) or None) if isinstance(output, list | tuple) else output
    return _changed(config.diff, changes).validated(_option), _changed(config.spark, changes).validated(_option)


def _changed(settings: S, options: Mapping[str, Any]) -> S:
    names = {field.name for field in fields(settings)}
    return replace(settings, **{name: value for name, value in options.items() if name in names and value is not None})


def _option(name: str) -> str:
    """Return how a setting is named in messages."""
    if name in _NO_OPTIONS:
        return f"diff.{name}"
    return {"snapshot": "--no-snapshot", "table_filter": "--filter"}.get(name, "--" + name.replace("_", "-"))
