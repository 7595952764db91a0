"""What a validation is told: nodes, tables, routes, mode, delays and limits; kept as JSON in the meta database."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from trueup.errors import ConfigError

MODES = ("full", "fast")
CHANGELOG = "changelog"
SOURCES = ("log", "tube", CHANGELOG)
# What `update` may change while a validation runs.
CHANGEABLE = (
    "mode",
    "check_interval",
    "row_error_delay",
    "initial_delay",
    "float_tolerance",
    "cutover",
    "max_rows_per_second",
    "max_retained_wal",
    "sweep",
)


@dataclass(frozen=True)
class Settings:
    """All of one validation; `source` and `target` are names of nodes, never addresses."""

    name: str
    source: str
    target: str
    tables: tuple[str, ...]
    # Each as `what=value`, with the table in front of a column: see routes.
    routes: tuple[str, ...] = ()
    renames: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    mode: str = "full"
    changes: str = "log"
    tube: str = ""
    # How the syncer's position is known: "", subscription:NAME, slot:NAME, sync:NAME, lag:SECONDS.
    syncer: str = ""
    publication: str = ""
    check_interval: float = 1.0
    row_error_delay: float = 30.0
    initial_delay: float = 0.0
    float_tolerance: float = 0.0
    numeric: str = "value"
    max_connections: int = 6
    max_rows_per_second: int = 0
    max_retained_wal: int = 64 * 1024**3
    batch: int = 50_000
    page: int = 5_000
    # The share of time that the rolling sweep may take; 0: none.
    sweep: float = 0.0
    sweep_rows: int = 5_000
    cutover: str = ""
    timeout: float = 60.0
    seed: int = 0

    def checked(self) -> Settings:
        """Itself, or an error that names what is wrong."""
        wrong = [text for right, text in self._rules() if not right]
        if wrong:
            raise ConfigError("; ".join(wrong), cure="see trueup validate start --help")
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        times = (self.check_interval, self.row_error_delay, self.initial_delay, self.float_tolerance)
        return [
            (bool(self.tables), "no table is named"),
            (self.source != self.target, "--from and --to are the same node"),
            (self.mode in MODES, f"the mode is {' or '.join(MODES)}, not {self.mode}"),
            (self.changes in SOURCES, f"--source is {', '.join(SOURCES)}, not {self.changes}"),
            ((self.changes == "tube") == bool(self.tube), "--source tube and --tube NAME belong together"),
            (self.numeric in ("value", "representation"), "numeric is value or representation"),
            (all(math.isfinite(each) and each >= 0 for each in times), "delays and tolerances are 0 or more"),
            (self.check_interval > 0, "--check-interval must be more than 0 seconds"),
            (self.max_connections >= 3, "--max-connections must be at least 3"),
            (self.batch > 0 and self.page > 0 and self.sweep_rows > 0, "sizes must be more than 0"),
            (0 <= self.sweep <= 0.9, "--sweep is a share of time between 0 and 0.9"),
            (self.max_rows_per_second >= 0 and self.max_retained_wal >= 0, "limits are 0 or more"),
        ]

    def as_json(self) -> dict[str, Any]:
        """For the meta database."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Settings:
        """As it was written, by this version or another one."""
        known = {each.name for each in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }
        return cls(**{name: value for name, value in values.items() if name in known})

    def updated(self, given: dict[str, Any]) -> Settings:
        """With other values; those that are None stay."""
        return replace(self, **{name: value for name, value in given.items() if value is not None}).checked()
