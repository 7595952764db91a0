"""trueup keeps copies of database tables true, and proves it.

The verbs are functions (`diff`, `check`, `rerun`, `repair`, `undo`, `doctor`), their results dataclasses (`DiffResult`,
`RepairResult`, `Diagnosis`), and every error is a `TrueupError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup import tube
    from trueup.config import Config, DiffSettings, Node, SparkSettings, load
    from trueup.diff.call import check, check_many, diff, diff_many, rerun, resume, resume_many
    from trueup.doctor.call import doctor
    from trueup.doctor.model import Diagnosis, Finding
    from trueup.errors import (
        CheckFailed,
        ConfigError,
        EngineError,
        Interrupted,
        NodeError,
        QueryError,
        StoreError,
        TrueupError,
    )
    from trueup.formats import register
    from trueup.repair.call import repair, undo
    from trueup.repair.validation import repair_validation
    from trueup.report.model import DiffResult, ManyResult, PairCounts
    from trueup.report.repair import RepairResult
    from trueup.report.repairs import RepairsResult
    from trueup.schema.call import schema_diff
    from trueup.schema.model import SchemaResult
    from trueup.source.call import snapshot
    from trueup.store import Task, TaskStore
    from trueup.switchover.connect import connect
    from trueup.switchover.library import Sync
    from trueup.validate.call import Validations

__version__ = "0.1.0"

# Where each public name lives; it is imported when it is first used, so that `import trueup` costs nothing.
_HOMES = {
    "check": "trueup.diff.call",
    "check_many": "trueup.diff.call",
    "diff_many": "trueup.diff.call",
    "rerun": "trueup.diff.call",
    "resume": "trueup.diff.call",
    "resume_many": "trueup.diff.call",
    "repair_validation": "trueup.repair.validation",
    "undo": "trueup.repair.call",
    "Config": "trueup.config",
    "connect": "trueup.switchover.connect",
    "DiffSettings": "trueup.config",
    "Diagnosis": "trueup.doctor.model",
    "Finding": "trueup.doctor.model",
    "Node": "trueup.config",
    "SparkSettings": "trueup.config",
    "load": "trueup.config",
    "CheckFailed": "trueup.errors",
    "ConfigError": "trueup.errors",
    "EngineError": "trueup.errors",
    "Interrupted": "trueup.errors",
    "NodeError": "trueup.errors",
    "QueryError": "trueup.errors",
    "StoreError": "trueup.errors",
    "TrueupError": "trueup.errors",
    "DiffResult": "trueup.report.model",
    "ManyResult": "trueup.report.model",
    "PairCounts": "trueup.report.model",
    "RepairResult": "trueup.report.repair",
    "RepairsResult": "trueup.report.repairs",
    "SchemaResult": "trueup.schema.model",
    "schema_diff": "trueup.schema.call",
    "register": "trueup.formats",
    "snapshot": "trueup.source.call",
    "Task": "trueup.store",
    "TaskStore": "trueup.store",
    "Sync": "trueup.switchover.library",
    "Validations": "trueup.validate.call",
}

__all__ = [
    "CheckFailed",
    "Config",
    "ConfigError",
    "Diagnosis",
    "DiffResult",
    "DiffSettings",
    "EngineError",
    "Finding",
    "Interrupted",
    "ManyResult",
    "Node",
    "NodeError",
    "PairCounts",
    "QueryError",
    "RepairResult",
    "RepairsResult",
    "SchemaResult",
    "SparkSettings",
    "StoreError",
    "Sync",
    "Task",
    "TaskStore",
    "TrueupError",
    "Validations",
    "check",
    "check_many",
    "connect",
    "diff",
    "diff_many",
    "doctor",
    "load",
    "register",
    "repair",
    "repair_validation",
    "rerun",
    "resume",
    "resume_many",
    "schema_diff",
    "snapshot",
    "tube",
    "undo",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("diff", "doctor", "repair", "tube"):
        return import_module(f"trueup.{name}")  # modules that can be called, and one that has names of its own
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trueup' has no attribute '{name}'")
    return getattr(import_module(home), name)
