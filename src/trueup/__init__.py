"""Compare, repair and synchronise tables of PostgreSQL databases, and prove the result.

Functions are for what runs once, classes for what lives in databases; docs/api.md describes all of them. Every error is
a `TrueupError`. Log records go to the logger `trueup`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup.api.accept import accept, acceptances, revoke
    from trueup.api.certificate import certificate_key, certify, verify_certificate
    from trueup.api.compare import compare
    from trueup.api.diff import check, check_many, diff, diff_many, explain, rerun, rerun_many, resume, resume_many
    from trueup.api.difflog import DiffLog, difflog_step
    from trueup.api.doctor import doctor
    from trueup.api.repair import repair, repair_many, undo, undo_many
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
    from trueup.verbs.compare.explain import Explanation
    from trueup.verbs.difflog.model import Rule
    from trueup.verbs.difflog.result import RunResult
    from trueup.verbs.difflog_ends.judge import Proof
    from trueup.verbs.difflog_ends.status import DiffLogStatus
    from trueup.verbs.doctor.model import Diagnosis, Finding
    from trueup.verbs.schema.model import SchemaResult
    from trueup.verbs.switchover.connect import connect

__version__ = "0.1.0"

# A library shows no log records by itself; the program that uses it decides.
logging.getLogger("trueup").addHandler(logging.NullHandler())

# Module -> its public names. A module is imported when one of its names is first used, so that `import trueup` is fast.
_NAMES = {
    "trueup.api.accept": "accept acceptances revoke",
    "trueup.api.certificate": "certificate_key certify verify_certificate",
    "trueup.api.compare": "compare",
    "trueup.api.diff": "check check_many diff diff_many explain rerun rerun_many resume resume_many",
    "trueup.api.difflog": "DiffLog difflog_step",
    "trueup.api.doctor": "doctor",
    "trueup.api.repair": "repair repair_many undo undo_many",
    "trueup.api.repair_validation": "repair_validation",
    "trueup.api.schema": "schema_diff",
    "trueup.api.snapshot": "snapshot",
    "trueup.api.switchover": "Switchover",
    "trueup.api.sync": "Sync",
    "trueup.api.tube": "Tube",
    "trueup.api.validate": "Validation",
    "trueup.config.load": "load",
    "trueup.config.logs": "LogFilter",
    "trueup.config.model": "Config Node",
    "trueup.config.settings": "DiffSettings SparkSettings",
    "trueup.errors": "CheckFailed ConfigError EngineError Interrupted NodeError QueryError StoreError TrueupError",
    "trueup.report.model": "DiffResult ManyResult PairCounts",
    "trueup.report.repair": "RepairResult",
    "trueup.report.repairs": "RepairsResult",
    "trueup.spark.formats": "register",
    "trueup.store": "Task TaskStore",
    "trueup.verbs.compare.explain": "Explanation",
    "trueup.verbs.difflog_ends.judge": "Proof",
    "trueup.verbs.difflog.model": "Rule",
    "trueup.verbs.difflog.result": "RunResult",
    "trueup.verbs.difflog_ends.status": "DiffLogStatus",
    "trueup.verbs.doctor.model": "Diagnosis Finding",
    "trueup.verbs.schema.model": "SchemaResult",
    "trueup.verbs.switchover.connect": "connect",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

# Written out for type checkers.
__all__ = ["CheckFailed", "Config", "ConfigError", "Diagnosis", "DiffLog", "DiffLogStatus", "DiffResult"]
__all__ += ["DiffSettings", "EngineError", "Explanation", "Finding", "Interrupted", "LogFilter", "ManyResult", "Node"]
__all__ += ["NodeError", "PairCounts", "Proof", "QueryError", "RepairResult", "RepairsResult", "Rule", "RunResult"]
__all__ += ["SchemaResult", "SparkSettings", "StoreError", "Switchover", "Sync", "Task", "TaskStore", "TrueupError"]
__all__ += ["Tube", "Validation", "accept", "acceptances", "certificate_key", "certify", "check", "check_many"]
__all__ += ["compare", "connect", "diff", "diff_many", "difflog_step", "doctor", "explain", "load", "register"]
__all__ += ["repair", "repair_many", "repair_validation", "rerun", "rerun_many", "resume", "resume_many", "revoke"]
__all__ += ["schema_diff", "snapshot", "undo", "undo_many", "verify_certificate"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'trueup' has no attribute '{name}'")
    return getattr(import_module(module), name)
