"""The verbs as Python calls: the same options, defaults and results as on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from trueup.config.load import load
from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.db.names import parse_column_names
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.engine.progress import Progress
    from trueup.report.model import DiffResult, ManyResult
    from trueup.rows.request import TableRequest

# The types of tasks of one table, and of many.
_ONE = ("TABLE_DIFF", "TABLE_CHECK")
_MANY = ("TABLES_DIFF", "TABLES_CHECK")
_SPARK_OPTIONS = ("engine", "master", "remote")
# Settings of the configuration that the command line does not offer.
_NO_OPTIONS = ("min_block_size", "max_block_size", "digest", "retries", "long_value")


def diff(table: str, **options: Any) -> DiffResult:
    """Compare a table on two or more nodes down to the rows, and write a report.

    Give nodes as `nodes={"n1": "postgresql://…", …}` or by name (`nodes=["n1", "n2"]`, `cluster="acctg"`) from the
    configuration (`config="trueup.toml"`, or a `Config`). All other options are those of `trueup diff`, with
    underscores: `block_size`, `table_filter`, `columns`, `exclude_columns`, `key`, `recheck`, `engine`, `task_db`, …
    """
    return _run(table, digests_only=False, **options)


def check(table: str, **options: Any) -> DiffResult:
    """The quick "am I in sync?": digests only, no rows fetched. Options as for `diff`."""
    return _run(table, digests_only=True, **options)


def diff_many(**options: Any) -> ManyResult:
    """Compare all tables that fit, several at a time on one engine, and write a report for each and a summary.

    `schemas=["public"]`, `tables=["public.*", "sales.order_??"]` say which, `skip=[…]` and `skip_file` which not. All
    other options are those of `diff`.
    """
    return _run_many(digests_only=False, **options)


def check_many(**options: Any) -> ManyResult:
    """The quick "are they in sync?" for all tables that fit: digests only. Options as for `diff_many`."""
    return _run_many(digests_only=True, **options)


def resume(task: str, **options: Any) -> DiffResult:
    """Go on with a diff or check that was interrupted or killed, without looking at its finished blocks again.

    `task` is its id, or the start of it. Table, nodes and settings are those of the task; the nodes' addresses come
    from `nodes` or the configuration (`config`). Further options: `task_db`, `progress`.
    """
    return cast("DiffResult", resume_any(task, kinds=_ONE, **options))


def resume_many(task: str, **options: Any) -> ManyResult:
    """The same for a run over many tables: those that are finished are not looked at again."""
    return cast("ManyResult", resume_any(task, kinds=_MANY, **options))


def resume_any(
    task: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    kinds: Sequence[str] = (),
) -> DiffResult | ManyResult:
    """Go on with a diff or check, of one table or of many."""
    from trueup.rows.request import request_again
    from trueup.store import TaskStore
    from trueup.verbs.diff import many
    from trueup.verbs.diff import run as one

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        found = store.get(task)
        if found.task_type not in (kinds or (*_ONE, *_MANY)):
            message = f"task {found.task_id[:8]} is no diff or check: it is a {found.task_type}"
            raise ConfigError(message, cure="see trueup tasks")
        if found.task_type in _MANY:
            return many.resume_many(many.many_again(found, config), found, store=store, progress=progress)
        request = request_again(found.task_context, found.cluster_name, config)
        return one.resume(request, found, store=store, progress=progress)


def rerun(
    report: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> DiffResult:
    """Look again at the keys of a past report, and at no others, and write a new report.

    `report` is the path of a JSON report, or the id of its task. Table, nodes and columns are those of the report; the
    nodes' addresses come from `nodes` or the configuration. Options are those of `trueup rerun`, with underscores.
    """
    from trueup.store import TaskStore
    from trueup.task.past import find_report, read_past, request_of
    from trueup.verbs.diff import rerun as again

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    settings, spark = settings_of(config, options, verb="rerun")
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        past = read_past(find_report(report, store))
        return again.run(request_of(past, config, settings, spark), past, store=store, progress=progress)


def settings_of(config: Config, options: Mapping[str, Any], *, verb: str) -> tuple[DiffSettings, SparkSettings]:
    """The configuration's settings with the options that were given; an unknown option is refused."""
    unknown = sorted(set(options) - _names(DiffSettings) - set(_SPARK_OPTIONS))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]}", cure=f"see trueup {verb} --help")
    return _changed(config.diff, options).validated(_option), _changed(config.spark, options).validated(_option)


def _run(table: str, *, task_db: str | None = None, progress: Progress | None = None, **options: Any) -> DiffResult:
    from trueup.store import TaskStore
    from trueup.verbs.diff.run import run

    request, config = _request(table, **options)
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        return run(request, store=store, progress=progress)


def _run_many(
    *,
    schemas: Sequence[str] = (),
    tables: Sequence[str] = (),
    skip: Sequence[str] = (),
    skip_file: str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> ManyResult:
    from trueup.db.patterns import parse_patterns
    from trueup.store import TaskStore
    from trueup.verbs.diff.many import ManyRequest, run_many

    patterns = parse_patterns(schemas=schemas, tables=tables, skip=skip, skip_file=skip_file or "")
    if not patterns.take:
        raise ConfigError("no tables are named", cure="give --schema public, or --tables 'public.*'")
    request, config = _request("", **options)
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        return run_many(ManyRequest(patterns, request), store=store, progress=progress)


def _request(
    table: str,
    *,
    digests_only: bool,
    nodes: Mapping[str, str] | Sequence[str] | None = None,
    cluster: str | None = None,
    config: Config | str | None = None,
    table_filter: str = "",
    columns: Sequence[str] = (),
    exclude_columns: Sequence[str] = (),
    key: Sequence[str] = (),
    **options: Any,
) -> tuple[TableRequest, Config]:
    """The request that the options make, and the configuration behind it."""
    from trueup.rows.request import TableRequest

    given = nodes if isinstance(nodes, Mapping) else None
    if not isinstance(config, Config):
        config = load(config, nodes=given)
    elif given:
        raise ConfigError("addresses and a Config cannot be given together", cure="put the nodes into the Config")
    if isinstance(options.get("output"), list | tuple):
        options["output"] = ",".join(options["output"]) or None
    settings, spark = settings_of(config, options, verb="diff")
    if not (columns or exclude_columns):
        # Whoever names columns means just those, whatever is configured.
        columns, exclude_columns = parse_column_names(settings.columns), parse_column_names(settings.exclude_columns)
    if columns and exclude_columns:
        raise ConfigError("--columns and --exclude-columns contradict each other", cure="give one of them")
    names = list(nodes) if nodes else None
    request = TableRequest(
        table=table,
        nodes=config.select(cluster, names),
        cluster=cluster or "",
        settings=settings,
        spark=spark,
        filter=table_filter or settings.table_filter,
        columns=tuple(columns),
        exclude_columns=tuple(exclude_columns),
        key=tuple(key) or parse_column_names(settings.key),
        digests_only=digests_only,
    )
    return request, config


def _changed(settings: Any, options: Mapping[str, Any]) -> Any:
    """The settings with the options that were given (None: not given)."""
    known = _names(type(settings))
    return replace(settings, **{name: value for name, value in options.items() if name in known and value is not None})


def _names(settings: type[DiffSettings | SparkSettings]) -> set[str]:
    return {field.name for field in fields(settings)}


def _option(name: str) -> str:
    if name in _NO_OPTIONS:
        return f"diff.{name}"
    return "--no-snapshot" if name == "snapshot" else "--" + name.replace("_", "-")
