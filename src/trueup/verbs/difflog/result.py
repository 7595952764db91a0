"""The result of a run, from its manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.model import REJOINED


@dataclass(frozen=True)
class RunResult:
    """The result of a run; number 0 means that no chunk set was waiting."""

    number: int
    chunks: tuple[str, ...] = ()
    # Signed rows per step, and late rows per step.
    rows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    # Late rows per step and reason, and how many of them `rejoin_late` can join.
    late_reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    rejoinable: int = 0
    bytes: int = 0
    files_read: int = 0
    files_in_state: int = 0
    inserted: int = 0
    seconds: float = 0.0
    resumed: bool = False
    folder: str = ""


def result_of(run: Run, *, resumed: bool) -> RunResult:
    """Return the result of a finished run."""
    outputs = run.facts["outputs"]
    steps = {name: facts for name, facts in outputs.items() if name.startswith("diff_log_") and "diff" in facts}
    old_states = outputs.get("diff_log_0_state", {})
    return RunResult(
        number=run.number,
        chunks=tuple(run.facts["chunks"]),
        rows={name: facts["diff"] for name, facts in steps.items()},
        late={name: facts["late"] for name, facts in steps.items() if facts["late"]},
        late_reasons={name: dict(facts["late_reasons"]) for name, facts in steps.items() if facts["late"]},
        rejoinable=sum(facts["late_reasons"].get(reason, 0) for facts in steps.values() for reason in REJOINED),
        bytes=sum(facts.get("bytes", 0) for facts in outputs.values()),
        files_read=len(old_states.get("files", ())),
        files_in_state=old_states.get("of", 0),
        inserted=outputs.get("clickhouse", {}).get("inserted", 0),
        seconds=run.facts["seconds"],
        resumed=resumed,
        folder=str(run.folder),
    )
