"""The outputs of a run, one function each: read what stands before it, write it whole, note it in the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.difflog import chunks
from trueup.difflog.manifest import Run
from trueup.difflog.merge import quoted
from trueup.difflog.model import SLOW, Difflog, SideLog
from trueup.difflog.state import StateTable
from trueup.difflog.step import DELETED, whole_step
from trueup.difflog.widen import FAST, fast_columns, fast_rows, known_versions, widen

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

EXPIRES = "Expires"
ROWS_A_FILE = 500_000


def write_old_state(session: Any, difflog: Difflog, table: StateTable, run: Run, frames: dict[str, DataFrame]) -> None:
    """`diff_log_0_state`: the states of the visits that the chunks name, from the files that may hold them."""
    keys = _keys(difflog, frames)
    every = table.files(run.facts["state_version"])
    files = table.files_for(keys, every)
    schema = table.schema(session) or _first_schema(difflog, frames)
    found = _alive(table.read(session, files, schema), run).join(keys, list(difflog.entity.key), "left_semi")
    with run.output("diff_log_0_state") as folder:
        found.write.parquet(str(folder))
    paths = [each.path for each in files]
    run.done("diff_log_0_state", files=paths, of=len(every), **_size(run.path("diff_log_0_state")))


def write_step(
    session: Any, difflog: Difflog, run: Run, source: str, updates: DataFrame, previous: str, name: str
) -> None:
    """One step: the signed log, the new states only, all states, and what came too late."""
    from pyspark.sql import functions as f

    log = next((log for log in difflog.logs if log.name == source), None)
    options = difflog.step_options(order_by=log.order_by if log else "", rejoin_late=run.facts["rejoin_late"])
    if log and log.id and all(name in updates.columns for name in log.id):
        # A row that a chunk tells twice is one row.
        updates = _once(difflog, log, updates)
    usable, refused = _usable(difflog, run, source, updates)
    before = session.read.parquet(str(run.path(previous))).drop(FAST, EXPIRES)
    step = whole_step(before, usable, options, keep=True)
    place = f"processing/{difflog.entity.name}_{source}"
    with run.output(f"{place}/visit_log_slow") as folder:
        step.diff.write.parquet(str(folder))
    with run.output(f"{place}/visits_patched_new_only") as folder:
        step.patched_new_only.write.parquet(str(folder))
    with run.output(f"{name}/visits_patched") as folder:
        step.patched.write.parquet(str(folder))
    with run.output(f"late/{source}") as folder:
        step.late.unionByName(refused, allowMissingColumns=True).write.parquet(str(folder))
    step.forget()
    reasons = session.read.parquet(str(run.path(f"late/{source}"))).groupBy("reason").agg(f.count("*")).collect()
    diff = _size(run.path(f"{place}/visit_log_slow"))
    run.done(
        name,
        diff=diff["rows"],
        new=_size(run.path(f"{place}/visits_patched_new_only"))["rows"],
        late=sum(row[1] for row in reasons),
        late_reasons={row[0]: row[1] for row in reasons},
        bytes=diff["bytes"],
    )


def _once(difflog: Difflog, log: SideLog, updates: DataFrame) -> DataFrame:
    """Each row of a log once; rows without an id all count."""
    from pyspark.sql import functions as f

    named = reduce(lambda one, other: one & other, [f.col(quoted(name)).isNotNull() for name in log.id])
    once = updates.where(named).dropDuplicates([*difflog.entity.key, *log.id])
    return once.unionByName(updates.where(~named))


def write_wide_log(session: Any, difflog: Difflog, run: Run, frames: dict[str, DataFrame]) -> None:
    """`visit_log_wide`: the signed logs of all steps, with the dropped columns glued on."""
    diffs = [
        session.read.parquet(str(run.path(f"processing/{difflog.entity.name}_{each}/visit_log_slow")))
        for each in frames
    ]
    every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), diffs)
    versions, fast = _versions(session, difflog, run, frames)
    wide = widen(every, versions, difflog, fast) if versions is not None else every
    with run.output("visit_log_wide") as folder:
        wide.drop("Block").write.option("maxRecordsPerFile", ROWS_A_FILE).parquet(str(folder))
    run.done("visit_log_wide", **_size(run.path("visit_log_wide")))


def commit_states(
    session: Any, difflog: Difflog, table: StateTable, run: Run, frames: dict[str, DataFrame], last: str
) -> None:
    """The new states into the state table: the files that were read are replaced, in one commit."""

    key = list(difflog.entity.key)
    old = set(run.facts["outputs"]["diff_log_0_state"]["files"])
    every = table.files(run.facts["state_version"])
    removed = [each for each in every if each.path in old]
    if table.last_run() < run.number:
        states = _with_fast(session, difflog, run, frames, session.read.parquet(str(run.path(last))))
        schema = table.schema(session)
        if schema is not None and removed:
            untouched = table.read(session, removed, schema).join(states.select(*key), key, "left_anti")
            states = states.unionByName(untouched, allowMissingColumns=True)
        if difflog.state.ttl_days:
            states = states.withColumn(EXPIRES, _expires(difflog, states))
        states = _alive(states, run)
        added = table.write_files(states.select(*_ordered(difflog, states)), run.number)
        table.commit(run.number, states.select(*_ordered(difflog, states)).schema, added, removed)
    run.done("state", removed=len(removed))


def insert_log(session: Any, difflog: Difflog, run: Run) -> None:
    """The wide log into ClickHouse, every file once."""
    from trueup.difflog.clickhouse import insert_files, open_target

    files = sorted(run.path("visit_log_wide").glob("*.parquet"))
    resumed = bool(run.facts.get("inserting"))
    schema = session.read.parquet(str(run.path("visit_log_wide"))).schema
    with open_target(difflog.target) as house:
        house.ensure_table(schema, key=difflog.entity.key, fast_version=difflog.entity.fast_version)
        # From here on a part of the files may be in: whoever comes after a kill has to look.
        run.note(inserting=True)
        inserted, skipped = insert_files(house, files, key=difflog.entity.key, resumed=resumed)
    run.done("clickhouse", inserted=inserted, skipped=skipped)


def _keys(difflog: Difflog, frames: dict[str, DataFrame]) -> DataFrame:
    """Every key that the chunks name, once."""
    from pyspark.sql import functions as f

    usable = [frame.where(chunks.unusable(difflog).isNull()) for frame in frames.values()]
    names = [f.col(quoted(name)) for name in difflog.entity.key]
    return reduce(lambda one, other: one.union(other), [each.select(*names) for each in usable]).distinct()


def _usable(difflog: Difflog, run: Run, source: str, updates: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The updates that can be judged, with the columns of the slow state; and those that cannot, with the reason."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    reason = chunks.unusable(difflog)
    if difflog.state.ttl_days and difflog.state.ttl_column in updates.columns:
        due = f.date_add(f.to_date(quoted(difflog.state.ttl_column)), difflog.state.ttl_days)
        reason = f.coalesce(reason, f.when(due < f.lit(run.facts["today"]).cast("date"), "expired"))
    marked = updates.withColumn("reason", reason)
    refused = marked.where("reason IS NOT NULL")
    skip = {*entity.dropped, "reason"}
    for log in difflog.logs:
        # What only names or orders the rows of a log is no part of the state.
        skip |= {*log.id, log.order_by} - set(difflog.rules) if log.name != source else set(log.id) - set(difflog.rules)
    columns = [f.col(quoted(name)) for name in updates.columns if name not in skip]
    return marked.where("reason IS NULL").select(*columns), refused


def _versions(
    session: Any, difflog: Difflog, run: Run, frames: dict[str, DataFrame]
) -> tuple[DataFrame | None, list[str]]:
    """What the fast supplier said at each version, as the chunks of visits and the old states tell it."""

    visits = frames.get(difflog.entity.name)
    old = session.read.parquet(str(run.path("diff_log_0_state")))
    known = [] if FAST not in old.columns else [old.select(*difflog.entity.key, difflog.entity.fast_version, FAST)]
    fast = fast_columns(difflog, visits) if visits is not None else []
    if fast and visits is not None:
        told = fast_rows(difflog, visits.where(chunks.unusable(difflog).isNull()))
        if known:
            # Columns may have been gained since: both structs get all of them.
            fast = list(dict.fromkeys((*_fields(old), *fast)))
            known = [_restruct(known[0], fast, told), _restruct(told, fast, known[0])]
        else:
            known = [told]
    elif known:
        fast = list(_fields(old))
    return (known_versions(difflog, known), fast) if known and fast else (None, [])


def _fields(frame: DataFrame) -> dict[str, DataType]:
    """The columns inside the struct of what the fast supplier said."""
    from pyspark.sql.types import StructType

    kind = frame.schema[FAST].dataType
    assert isinstance(kind, StructType)
    return {each.name: each.dataType for each in kind.fields if each.name != "nothing"}


def _restruct(frame: DataFrame, names: Sequence[str], other: DataFrame) -> DataFrame:
    """The struct of fast columns with exactly these names; what a frame lacks is NULL, of the other's type."""
    from pyspark.sql import functions as f

    mine, theirs = _fields(frame), _fields(other)
    fields = [
        (f.col(FAST).getField(name) if name in mine else f.lit(None).cast(theirs[name])).alias(name) for name in names
    ]
    return frame.withColumn(FAST, f.when(f.col(FAST).isNotNull(), f.struct(*fields)))


def _with_fast(session: Any, difflog: Difflog, run: Run, frames: dict[str, DataFrame], states: DataFrame) -> DataFrame:
    """The new states with what the fast supplier said at their fast version."""
    from pyspark.sql import functions as f

    versions, fast = _versions(session, difflog, run, frames)
    if versions is None or not fast:
        return states
    exact = f.element_at("versions", f.col(quoted(difflog.entity.fast_version)))
    joined = states.join(versions, list(difflog.entity.key), "left")
    return joined.withColumn(FAST, f.coalesce(exact, f.col("newest"))).drop("versions", "newest")


def _expires(difflog: Difflog, states: DataFrame) -> Column:
    """The day from which a state is forgotten."""
    from pyspark.sql import functions as f

    name = difflog.state.ttl_column
    value = f.col(quoted(name)) if name in states.columns else f.col(FAST).getField(name)
    return f.date_add(f.to_date(value), difflog.state.ttl_days)


def _alive(states: DataFrame, run: Run) -> DataFrame:
    """Without the states whose time is over."""
    from pyspark.sql import functions as f

    if EXPIRES not in states.columns:
        return states
    today = f.lit(run.facts["today"]).cast("date")
    return states.where(f.col(EXPIRES).isNull() | (f.col(EXPIRES) >= today))


def _ordered(difflog: Difflog, states: DataFrame) -> list[Column]:
    """The state table's columns in a fixed order, ours first."""
    from pyspark.sql import functions as f

    ours = [*difflog.entity.key, difflog.entity.fast_version, SLOW, DELETED]
    rest = [name for name in states.columns if name not in ours]
    return [f.col(quoted(name)) for name in (*ours, *rest)]


def _first_schema(difflog: Difflog, frames: dict[str, DataFrame]) -> StructType:
    """The columns of a state before there is one: key and versions."""
    from pyspark.sql.types import BooleanType, LongType, StructField, StructType

    some = next(iter(frames.values())).schema
    fields = [StructField(name, some[name].dataType) for name in difflog.entity.key]
    fields += [StructField(difflog.entity.fast_version, LongType()), StructField(SLOW, LongType())]
    return StructType([*fields, StructField(DELETED, BooleanType())])


def _size(folder: Path) -> dict[str, int]:
    """Rows and bytes of an output, from the files' own footers."""
    import pyarrow.parquet as pq

    files = list(folder.glob("*.parquet"))
    return {
        "rows": sum(pq.read_metadata(file).num_rows for file in files),
        "bytes": sum(f.stat().st_size for f in files),
    }
