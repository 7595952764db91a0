"""Writes the states after each step with one query per schema, each row once.

Most keys are changed by few steps. A state is valid from the step that made it to the step before the next change: its
span. The rows of a span are written to files of their own, and all states after a step are links to the files of the
spans that contain it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.verbs.difflog.frame import RunFrame
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.steps.merge import col
from trueup.verbs.difflog.steps.step import new_only, unchanged
from trueup.verbs.difflog.together import NUMBER, link, place_empty, write_group


@dataclass(frozen=True)
class StateOutputs:
    """The names of two outputs of a step: the states that it changed, and all states after it."""

    changed: str
    every: str


@dataclass(frozen=True)
class _Start:
    """States that begin at a step: those that it changed, or others, because their files begin there."""

    step: int
    is_change: bool
    data: DataFrame


def write_states(run: Run, frame: RunFrame, outputs: Mapping[str, StateOutputs]) -> None:
    """Write these outputs, by source; each is complete under its name, or not there."""
    if not outputs:
        return
    staging = run.path("states.part")
    shutil.rmtree(staging, ignore_errors=True)
    ends = len(frame.steps) + 1
    starts = [one for number in range(1, ends) for one in _starts(frame, number)]
    groups: dict[str, dict[int, DataFrame]] = {}
    for index, one in enumerate(starts):
        groups.setdefault(one.data.schema.json(), {})[index] = one.data
    for frames in groups.values():
        write_group(staging, {index * (ends + 1): data for index, data in frames.items()})
    for number, source in enumerate(frame.steps, 1):
        if source not in outputs:
            continue
        files = {
            one: list(_files(staging, index * (ends + 1), range(number + 1, ends + 1)))
            for index, one in enumerate(starts)
            if one.step <= number
        }
        changed = [path for one, paths in files.items() if one.is_change and one.step == number for path in paths]
        every = [path for paths in files.values() for path in paths]
        for name, paths in ((outputs[source].changed, changed), (outputs[source].every, every)):
            with run.output(name) as folder:
                if paths:
                    _place(folder, paths)
                else:
                    place_empty(folder, new_only(frame.data, frame.steps[source], frame.options[source]))
    shutil.rmtree(staging, ignore_errors=True)


def _starts(frame: RunFrame, number: int) -> list[_Start]:
    """Return the states that begin at a step, with the step at which they end."""
    source = list(frame.steps)[number - 1]
    step, options, counts = frame.steps[source], frame.options[source], frame.counts.steps[source]
    found = []
    end = _end(frame, number)
    if counts.changed:
        found.append(_Start(number, True, new_only(frame.data, step, options, [end])))
    if counts.unchanged and _begins(frame, number):
        found.append(_Start(number, False, unchanged(frame.data, step, options, [end])))
    return found


def _begins(frame: RunFrame, number: int) -> bool:
    """Return whether all states begin at a step: it is the first, or its states have other columns."""
    steps = [list(step.after.columns) for step in frame.steps.values()]
    return number == 1 or steps[number - 1] != steps[number - 2]


def _end(frame: RunFrame, number: int) -> Column:
    """Return the first step after this one at which the state of a key ends, as a part of the number of an output."""
    steps = list(frame.steps.values())
    limit = next((later for later in range(number + 1, len(steps) + 1) if _begins(frame, later)), len(steps) + 1)
    end = f.lit(limit)
    for later in range(limit - 1, number, -1):
        end = f.when(col(steps[later - 1].applied), later).otherwise(end)
    return end.alias(NUMBER)


def _files(staging: Path, base: int, ends: range) -> list[Path]:
    return [path for end in ends for path in sorted((staging / f"{NUMBER}={base + end}").glob("*.parquet"))]


def _place(folder: Path, files: list[Path]) -> None:
    folder.mkdir(parents=True)
    for file in files:
        # Files of two spans may have the same name.
        link(file, folder / f"{file.parent.name.partition('=')[2]}-{file.name}")
    (folder / "_SUCCESS").touch()
