"""The outputs of a run, one function each: read what stands before it, write it whole, note it in the manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.verbs.difflog.frame import RunFrame, alive
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.merge import quoted
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SLOW, Difflog
from trueup.verbs.difflog.state import DataFile, StateTable
from trueup.verbs.difflog.step import diff, late, new_only, states_at, unchanged
from trueup.verbs.difflog.widen import fast_state, widen

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_A_FILE = 500_000


def write_old_state(difflog: Difflog, table: StateTable, run: Run, frame: RunFrame) -> None:
    """`diff_log_0_state`: the states of the visits that the chunks name, from the files that may hold them."""
    from pyspark.sql import functions as f

    options = difflog.step_options()
    known = frame.data.where(f.col(quoted(frame.first.fast)).isNotNull())
    fast = fast_state(frame.glue, frame.first.fast)
    with run.output("diff_log_0_state") as folder:
        states_at(known, frame.first, options, [fast] if fast is not None else []).write.parquet(str(folder))
    of = len(table.files(run.facts["state_version"]))
    run.done("diff_log_0_state", files=list(frame.files), of=of, **_size(run.path("diff_log_0_state")))


def write_step(session: Any, difflog: Difflog, run: Run, source: str, frame: RunFrame, name: str) -> None:
    """One step: the signed log, the new states only, all states, and what came too late."""
    move, options = frame.moves[source], frame.options[source]
    place = f"processing/{difflog.entity.name}_{source}"
    aside = late(frame.data, move, options).unionByName(frame.refused[source], allowMissingColumns=True)
    _all_at_once(
        partial(_write, run, f"{place}/visit_log_slow", diff(frame.data, move, options)),
        partial(_write_states, run, place, name, frame, source),
        partial(_write, run, f"late/{source}", aside),
    )
    signed = _size(run.path(f"{place}/visit_log_slow"))
    reasons = _reasons(session, run.path(f"late/{source}"))
    run.done(
        name,
        diff=signed["rows"],
        new=_size(run.path(f"{place}/visits_patched_new_only"))["rows"],
        late=sum(reasons.values()),
        late_reasons=reasons,
        bytes=signed["bytes"],
    )


def _write(run: Run, name: str, frame: DataFrame) -> None:
    with run.output(name) as folder:
        frame.write.parquet(str(folder))


def _write_states(run: Run, place: str, name: str, frame: RunFrame, source: str) -> None:
    """The changed states, and all states: the second folder has the files of the first, and the unchanged beside."""
    move, options = frame.moves[source], frame.options[source]
    _write(run, f"{place}/visits_patched_new_only", new_only(frame.data, move, options))
    with run.output(f"{name}/visits_patched") as folder:
        unchanged(frame.data, move, options).write.parquet(str(folder))
        for file in run.path(f"{place}/visits_patched_new_only").glob("*.parquet"):
            _link(file, folder / f"new-{file.name}")


def _link(file: Path, place: Path) -> None:
    """The same file under a second name; a copy where the file system knows no second names."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def _all_at_once(*jobs: Callable[[], None]) -> None:
    """Several Spark jobs side by side: one plans while another computes. The first that fails is told."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def _reasons(session: Any, folder: Path) -> dict[str, int]:
    """How many rows were kept aside for which reason."""
    from pyspark.sql import functions as f

    if not _size(folder)["rows"]:
        return {}
    found = session.read.parquet(str(folder)).groupBy("reason").agg(f.count("*")).collect()
    return {row[0]: row[1] for row in found}


def write_wide_log(difflog: Difflog, run: Run, frame: RunFrame) -> None:
    """`visit_log_wide`: the signed logs of all steps, with the dropped columns glued on."""
    more = frame.glue.columns()
    parts = []
    for source, move in frame.moves.items():
        signed = diff(frame.data, move, frame.options[source], more)
        parts.append(widen(signed, signed.columns[: -len(more)], difflog, frame.glue))
    wide = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    with run.output("visit_log_wide") as folder:
        wide.drop("Block").write.option("maxRecordsPerFile", ROWS_A_FILE).parquet(str(folder))
    run.done("visit_log_wide", **_size(run.path("visit_log_wide")))


def commit_states(session: Any, difflog: Difflog, table: StateTable, run: Run, frame: RunFrame) -> None:
    """The new states into the state table: the files that were read are replaced, in one commit."""
    old = set(run.facts["outputs"]["diff_log_0_state"]["files"])
    every = table.files(run.facts["state_version"])
    removed = [each for each in every if each.path in old]
    if table.last_run() < run.number:
        states = _new_states(session, difflog, table, run, frame, removed)
        added = table.write_files(states, run.number)
        table.commit(run.number, states.schema, added, removed)
    run.done("state", removed=len(removed))


def _new_states(
    session: Any, difflog: Difflog, table: StateTable, run: Run, frame: RunFrame, removed: Sequence[DataFile]
) -> DataFrame:
    """The states after the last step, and those that stood beside the old ones in their files."""
    from pyspark.sql import functions as f

    place = [frame.first, *[move.after for move in frame.moves.values()]][-1]
    fast = fast_state(frame.glue, place.fast)
    known = frame.data.where(f.col(quoted(place.fast)).isNotNull())
    states = states_at(known, place, difflog.step_options(), [fast] if fast is not None else [])
    schema = table.schema(session)
    if schema is not None and removed:
        untouched = table.read(session, removed, schema).join(frame.keys, list(difflog.entity.key), "left_anti")
        states = states.unionByName(untouched, allowMissingColumns=True)
    if difflog.state.ttl_days:
        states = states.withColumn(EXPIRES, _expires(difflog, states))
    states = alive(states, run)
    return states.select(*_ordered(difflog, states))


def insert_log(session: Any, difflog: Difflog, run: Run) -> None:
    """The wide log into ClickHouse, every file once."""
    from trueup.verbs.difflog.clickhouse import insert_files, open_target

    files = sorted(run.path("visit_log_wide").glob("*.parquet"))
    resumed = bool(run.facts.get("inserting"))
    schema = session.read.parquet(str(run.path("visit_log_wide"))).schema
    with open_target(difflog.target) as house:
        house.ensure_table(schema, key=difflog.entity.key, fast_version=difflog.entity.fast_version)
        # From here on a part of the files may be in: whoever comes after a kill has to look.
        run.note(inserting=True)
        inserted, skipped = insert_files(house, files, key=difflog.entity.key, resumed=resumed)
    run.done("clickhouse", inserted=inserted, skipped=skipped)


def _expires(difflog: Difflog, states: DataFrame) -> Column:
    """The day from which a state is forgotten."""
    from pyspark.sql import functions as f

    name = difflog.state.ttl_column
    value = f.col(quoted(name)) if name in states.columns else f.col(FAST).getField(name)
    return f.date_add(f.to_date(value), difflog.state.ttl_days)


def _ordered(difflog: Difflog, states: DataFrame) -> list[Column]:
    """The state table's columns in a fixed order, ours first."""
    from pyspark.sql import functions as f

    ours = [*difflog.entity.key, difflog.entity.fast_version, SLOW, DELETED]
    rest = [name for name in states.columns if name not in ours]
    return [f.col(quoted(name)) for name in (*ours, *rest)]


def _size(folder: Path) -> dict[str, int]:
    """Rows and bytes of an output, from the files' own footers."""
    import pyarrow.parquet as pq

    files = list(folder.glob("*.parquet"))
    return {
        "rows": sum(pq.read_metadata(file).num_rows for file in files),
        "bytes": sum(f.stat().st_size for f in files),
    }
