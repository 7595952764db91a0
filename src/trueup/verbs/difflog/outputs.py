"""The outputs of a run: computed from the frame in one pass, and recorded in the manifest one by one."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.engine.parquet_files import reader_of, spark_footer, write_empty
from trueup.engine.progress import Progress
from trueup.errors import StoreError
from trueup.verbs.difflog.clickhouse import insert_files, open_target
from trueup.verbs.difflog.frame import without_expired
from trueup.verbs.difflog.layout import Layout, choose_layout
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.mark import set_mark
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SLOW, DiffLogConfig
from trueup.verbs.difflog.spans import changed_by, spans_of, valid_after
from trueup.verbs.difflog.state import DataFile, StateTable
from trueup.verbs.difflog.steps.columns import StepColumns
from trueup.verbs.difflog.steps.merge import col, cols
from trueup.verbs.difflog.steps.schemas import OutputSchemas
from trueup.verbs.difflog.steps.sent import written_by_executors
from trueup.verbs.difflog.steps.step import late
from trueup.verbs.difflog.steps.write import (
    NEW,
    OLD,
    READ,
    ROWS_PER_FILE,
    WIDE,
    OutputPlan,
    signed_of,
    span_of,
    write_files,
)
from trueup.verbs.difflog.stored import StoredFrame

WIDE_LOG = "visit_log_wide"
# A run with fewer keys is written by this process: a Spark job takes longer.
FEW = 50_000


class Outputs:
    """The outputs of a run: computed from its frame in one pass, then placed under their names one after the other."""

    def __init__(self, session: SparkSession, difflog: DiffLogConfig, run: Run, stored: StoredFrame) -> None:
        self.session, self.difflog, self.run, self.stored = session, difflog, run, stored
        self.frame, self.counts = stored.frame, stored.counts
        self.schemas = OutputSchemas(self.frame.data.schema, difflog.step_options().log_columns)
        self.plan = self._plan()
        self._files: dict[str, list[Path]] = {}

    def _plan(self) -> OutputPlan:
        frame = self.frame
        spans = spans_of(frame.steps)
        schemas = {
            OLD: self.schemas.states(frame.first, frame.glue),
            NEW: self.schemas.states(self.frame.last, frame.glue),
            WIDE: self.wide_schema,
            **{signed_of(source): self.schemas.signed(step) for source, step in frame.steps.items()},
            **{span_of(span, end): self.schemas.states(span.step.after) for span in spans for end in span.ends},
        }
        types = {name: column for step in frame.steps.values() for name, column in step.after.columns.items()}
        types |= {name: frame.glue.place(name) for name in frame.glue.names if name not in types}
        return OutputPlan(
            names=tuple(self.stored.names),
            log=self.schemas.log,
            first=frame.first,
            last=frame.last,
            steps=frame.steps,
            entity=self.difflog.entity.name,
            glue=frame.glue,
            spans=spans,
            wide={name: types.get(name, "") for name in self.wide_schema.names},
            footers={name: spark_footer(schema) for name, schema in schemas.items()},
        )

    @property
    def wide_schema(self) -> StructType:
        """The schema of the wide log."""
        return self.schemas.wide(self.frame.steps.values(), self.frame.glue)

    def compute(self) -> None:
        """Write the rows of all outputs into the folder of the frame."""
        folder, paths = str(self.stored.folder), [str(path) for path in self.stored.files]
        if self.counts.keys <= FEW:
            written = write_files(paths, self.plan, folder)
        else:
            written = written_by_executors(self.session, paths, self.plan, folder)
        read = sum(one.rows for one in written if one.output == READ)
        if read != self.counts.keys:
            raise StoreError(
                f"{folder} had {self.counts.keys:,} rows, and {read:,} were read: its files were changed meanwhile",
                cure="run again, with no other program in this folder",
            )
        for one in written:
            if one.output != READ:
                self._files.setdefault(one.output, []).append(self.stored.folder / one.path)

    def place_old_states(self, table: StateTable) -> None:
        """Place `diff_log_0_state`: the old states of the visits in the chunk sets."""
        name = "diff_log_0_state"
        self._place(name, [OLD], self.schemas.states(self.frame.first, self.frame.glue))
        of = len(table.files(self.run.facts["state_version"]))
        place = {"files": list(self.frame.files), "buckets": list(self.frame.buckets), "of": of}
        self.run.done(name, **place, **_size(self.run.path(name)))

    def place_steps(self, progress: Progress) -> None:
        """Place the steps: of each the signed log, the changed states, all states, and the late rows."""
        for number, (source, step) in enumerate(self.frame.steps.items(), 1):
            name = f"diff_log_{number}_{source}"
            if not self.run.has(name):
                self._place_step(number, name, source, step)
            progress.advance()

    def _place_step(self, number: int, name: str, source: str, step: StepColumns) -> None:
        place = f"processing/{self.difflog.entity.name}_{source}"
        signed, changed = f"{place}/visit_log_slow", f"{place}/visits_patched_new_only"
        states, spans = self.schemas.states(step.after), self.plan.spans
        self._place(signed, [signed_of(source)], self.schemas.signed(step))
        self._place(changed, [span_of(*one) for one in changed_by(spans, number)], states)
        self._place(f"{name}/visits_patched", [span_of(*one) for one in valid_after(spans, number)], states)
        self._write_late(source, step)
        reasons = _reasons(self.run.path(f"late/{source}"))
        size = _size(self.run.path(signed))
        self.run.done(
            name,
            diff=size["rows"],
            new=_size(self.run.path(changed))["rows"],
            late=sum(reasons.values()),
            late_reasons=reasons,
            bytes=size["bytes"],
        )

    def _write_late(self, source: str, step: StepColumns) -> None:
        """Write the late rows with Spark: most runs have none."""
        refused = self.counts.refused.get(source)
        with self.run.output(f"late/{source}") as folder:
            if not refused and not self.counts.has_late:
                _place_empty(self.session, folder, self.schemas.late(step))
                return
            rows = late(self.stored.rows, step, self.frame.options[source])
            if refused:
                rows = rows.unionByName(self.frame.refused[source], allowMissingColumns=True)
            rows.write.parquet(str(folder))

    def place_wide_log(self) -> None:
        """Place `visit_log_wide`: the signed logs of all steps, with the dropped columns."""
        self._place(WIDE_LOG, [WIDE], self.wide_schema)
        self.run.done(WIDE_LOG, **_size(self.run.path(WIDE_LOG)))

    def commit_states(self, table: StateTable) -> None:
        """Write the new states, and replace the files that the layout names, in one commit."""
        every = table.files(self.run.facts["state_version"])
        layout = choose_layout(every, set(self.frame.files), set(self.frame.buckets), self.counts.keys)
        if table.last_run() < self.run.number:
            layout = _with_merged(self.session, table, layout, every)
            states = self._new_states(table, layout)
            added = table.write_files(states, self.run.number, changes=layout.changes_only)
            record = self.run.facts["record"]
            table.commit(self.run.number, states.schema, added, layout.replaced, record=record)
        self.run.done("state", removed=len(layout.replaced), changes_only=layout.changes_only)

    def _new_states(self, table: StateTable, layout: Layout) -> DataFrame:
        """Return the states after the last step, and the untouched states from the files that are replaced."""
        schema, files = self.schemas.states(self.frame.last, self.frame.glue), self._files.get(NEW, [])
        reader = self.session.read.schema(schema)
        states = reader.parquet(*map(str, files)) if files else self.session.createDataFrame([], schema)
        before = table.schema()
        if before is not None and layout.replaced:
            key = self.difflog.entity.key
            keys = self.stored.rows.select(*cols(key))
            untouched = table.read(self.session, layout.replaced, before).join(keys, list(key), "left_anti")
            states = states.unionByName(untouched, allowMissingColumns=True)
        if self.difflog.state.ttl_days:
            states = states.withColumn(EXPIRES, expires(self.difflog, states))
        if not layout.changes_only:
            # A change that has expired stays: another file may have an older state of the key.
            states = without_expired(states, self.run)
        return states.select(*_ordered(self.difflog, states))

    def _place(self, name: str, parts: Sequence[str], schema: StructType) -> None:
        """Make the files of these parts an output: complete under its name, or not there."""
        files = [file for part in parts for file in self._files.get(part, ())]
        with self.run.output(name) as folder:
            if not files:
                _place_empty(self.session, folder, schema)
                return
            folder.mkdir(parents=True)
            for number, file in enumerate(files):
                _link(file, folder / f"part-{number:05d}-{file.name.removeprefix('part-')}")
            (folder / "_SUCCESS").touch()


def _place_empty(session: SparkSession, folder: Path, schema: StructType) -> None:
    """Write an output without rows."""
    if not write_empty(folder, schema):
        session.createDataFrame([], schema).coalesce(1).write.parquet(str(folder))


def _link(file: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system does not support links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def check_table(difflog: DiffLogConfig, wide: StructType) -> None:
    """Raise CheckFailed if the table in ClickHouse cannot store the log, before anything is written."""
    if difflog.target.table:
        with open_target(difflog.target) as house:
            house.check_table(wide, key=difflog.entity.key, fast_version=difflog.entity.fast_version)


def _reasons(folder: Path) -> dict[str, int]:
    """Return the number of late rows per reason."""
    counts: Counter[str] = Counter()
    for path in folder.glob("*.parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["reason"]) if file.metadata.num_rows else ():
                counts.update({one["values"]: one["counts"] for one in batch.column(0).value_counts().to_pylist()})
    return dict(counts)


def write_wide_log(run: Run, wide: DataFrame) -> None:
    """Write `visit_log_wide` of a migration."""
    with run.output(WIDE_LOG) as folder:
        wide.write.option("maxRecordsPerFile", ROWS_PER_FILE).parquet(str(folder))
    run.done(WIDE_LOG, **_size(run.path(WIDE_LOG)))


def is_committed(table: StateTable, run: Run) -> bool:
    """Return whether the states of a run are in the state table, also if it was killed before it could record that."""
    if run.is_recorded and not run.has("state") and table.last_run() >= run.number:
        table.sync()
        run.done("state")
    return run.has("state")


def _with_merged(session: SparkSession, table: StateTable, layout: Layout, every: Sequence[DataFile]) -> Layout:
    """Add the files with keys of merged changes: without the changes, their states would be valid again."""
    schema = table.schema()
    if not layout.merged or schema is None:
        return layout
    keys = table.read(session, layout.merged, schema).select(*cols(table.key))
    known = {file.path for file in layout.replaced}
    files, _ = table.files_for(keys, [file for file in every if not file.has_changes and file.path not in known])
    return replace(layout, replaced=(*layout.replaced, *files))


def insert_log(session: SparkSession, difflog: DiffLogConfig, run: Run, log: str) -> None:
    """Insert the wide log into ClickHouse, every file once; `log` is the id of the log.

    Raises StoreError if a file of the wide log is missing.
    """
    _check_complete(run, WIDE_LOG)
    files = sorted(run.path(WIDE_LOG).glob("*.parquet"))
    resumed = bool(run.facts.get("inserting"))
    schema = reader_of(session, files).parquet(str(run.path(WIDE_LOG))).schema
    with open_target(difflog.target) as house:
        house.ensure_table(schema, key=difflog.entity.key, fast_version=difflog.entity.fast_version)
        set_mark(house, log)
        # From here on some files may be inserted: a run that continues this one must check.
        run.note(inserting=True)
        inserted, skipped = insert_files(house, files, key=difflog.entity.key, resumed=resumed)
    run.done("clickhouse", inserted=inserted, skipped=skipped)


def _check_complete(run: Run, name: str) -> None:
    """Raise StoreError if an output does not contain the rows that the manifest lists."""
    expected, found = run.facts["outputs"][name]["rows"], _size(run.path(name))["rows"]
    if found != expected:
        raise StoreError(
            f"{run.path(name)} contains {found:,} rows, but the run wrote {expected:,}: files are missing",
            cure="restore the folder; the state contains this run already",
        )


def expires(difflog: DiffLogConfig, states: DataFrame) -> Column:
    """Return the day on which a state expires."""
    name = difflog.state.ttl_column
    value = col(name) if name in states.columns else f.col(FAST).getField(name)
    return f.date_add(f.to_date(value), difflog.state.ttl_days)


def _ordered(difflog: DiffLogConfig, states: DataFrame) -> list[Column]:
    """Return the columns of the state table in a fixed order: key and versions first."""
    first = [*difflog.entity.key, difflog.entity.fast_version, SLOW, DELETED]
    rest = [name for name in states.columns if name not in first]
    return cols((*first, *rest))


def _size(folder: Path) -> dict[str, int]:
    """Return the rows and bytes of an output, from the footers of its files."""
    files = list(folder.glob("*.parquet"))
    return {
        "rows": sum(pq.read_metadata(file).num_rows for file in files),
        "bytes": sum(file.stat().st_size for file in files),
    }
