"""Compare, repair and synchronise tables of PostgreSQL databases, and prove the result.

Functions are for what runs once, classes for what lives in databases; docs/api.md describes all of them. Every error is
a `TrueupError`. Log records go to the logger `trueup`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup.api.diff import check, check_many, diff, diff_many, rerun, resume, resume_many
    from trueup.api.difflog import DiffLog, difflog_step
    from trueup.api.doctor import doctor
    from trueup.api.repair import repair, undo
    from trueup.api.repair_validation import repair_validation
    from trueup.api.schema import schema_diff
    from trueup.api.snapshot import snapshot
    from trueup.api.switchover import Switchover
    from trueup.api.sync import Sync
    from trueup.api.tube import Tube
    from trueup.api.validate import Validation
    from trueup.config.load import load
    from trueup.config.logs import LogFilter
    from trueup.config.model import Config, Node
    from trueup.config.settings import DiffSettings, SparkSettings
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
    from trueup.report.model import DiffResult, ManyResult, PairCounts
    from trueup.report.repair import RepairResult
    from trueup.report.repairs import RepairsResult
    from trueup.spark.formats import register
    from trueup.store import Task, TaskStore
    from trueup.verbs.difflog.model import Rule
    from trueup.verbs.doctor.model import Diagnosis, Finding
    from trueup.verbs.schema.model import SchemaResult
    from trueup.verbs.switchover.connect import connect

__version__ = "0.1.0"

# A library shows no log records by itself; the program that uses it decides.
logging.getLogger("trueup").addHandler(logging.NullHandler())

# Public name -> its module, which is imported on first use, so that `import trueup` is fast.
_MODULES = {
    "diff": "trueup.api.diff",
    "DiffLog": "trueup.api.difflog",
    "difflog_step": "trueup.api.difflog",
    "Rule": "trueup.verbs.difflog.model",
    "doctor": "trueup.api.doctor",
    "repair": "trueup.api.repair",
    "check": "trueup.api.diff",
    "check_many": "trueup.api.diff",
    "diff_many": "trueup.api.diff",
    "rerun": "trueup.api.diff",
    "resume": "trueup.api.diff",
    "resume_many": "trueup.api.diff",
    "repair_validation": "trueup.api.repair_validation",
    "undo": "trueup.api.repair",
    "Config": "trueup.config.model",
    "connect": "trueup.verbs.switchover.connect",
    "DiffSettings": "trueup.config.settings",
    "Diagnosis": "trueup.verbs.doctor.model",
    "Finding": "trueup.verbs.doctor.model",
    "Node": "trueup.config.model",
    "SparkSettings": "trueup.config.settings",
    "load": "trueup.config.load",
    "LogFilter": "trueup.config.logs",
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
    "SchemaResult": "trueup.verbs.schema.model",
    "schema_diff": "trueup.api.schema",
    "register": "trueup.spark.formats",
    "snapshot": "trueup.api.snapshot",
    "Task": "trueup.store",
    "TaskStore": "trueup.store",
    "Switchover": "trueup.api.switchover",
    "Sync": "trueup.api.sync",
    "Tube": "trueup.api.tube",
    "Validation": "trueup.api.validate",
}

__all__ = [
    "CheckFailed",
    "Config",
    "ConfigError",
    "Diagnosis",
    "DiffLog",
    "DiffResult",
    "DiffSettings",
    "EngineError",
    "Finding",
    "Interrupted",
    "LogFilter",
    "ManyResult",
    "Node",
    "NodeError",
    "PairCounts",
    "QueryError",
    "RepairResult",
    "RepairsResult",
    "Rule",
    "SchemaResult",
    "SparkSettings",
    "StoreError",
    "Switchover",
    "Sync",
    "Task",
    "TaskStore",
    "TrueupError",
    "Tube",
    "Validation",
    "check",
    "check_many",
    "connect",
    "diff",
    "diff_many",
    "difflog_step",
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
    "undo",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'trueup' has no attribute '{name}'")
    return getattr(import_module(module), name)
