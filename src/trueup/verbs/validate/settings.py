"""The settings of a validation, stored as JSON in the meta database."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from trueup.errors import ConfigError

MODES = ("full", "fast")
CHANGELOG = "changelog"
SOURCES = ("log", "tube", CHANGELOG)
# Settings of an existing validation that cannot be changed, because its positions and keys depend on them.
FIXED = (
    "source", "target", "tables", "routes", "renames", "filters", "constants", "excludes", "changes", "tube",
    "publication", "numeric", "both_sides",
)  # fmt: skip

# Names that an earlier version stored.
_RENAMED = {"sweep": "scrub_share", "sweep_rows": "scrub_rows"}


@dataclass(frozen=True)
class Settings:
    """The settings of one validation; `source` and `target` are names of nodes."""

    name: str
    source: str
    target: str
    tables: tuple[str, ...]
    # Names of tables that `tables` matches and that were removed.
    removed: tuple[str, ...] = ()
    # Texts like `TABLE.COLUMN=VALUE`: see `routes`.
    routes: tuple[str, ...] = ()
    renames: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    # The functions and extensions that filters may call.
    allow_functions: tuple[str, ...] = ()
    allow_extensions: tuple[str, ...] = ()
    mode: str = "full"
    changes: str = "log"
    # Whether changes of the target are read, too.
    both_sides: bool = False
    tube: str = ""
    # How the position of the syncer is found: "", subscription:NAME, slot:NAME, sync:NAME, lag:SECONDS.
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
    # Messages per read of the slot, and pending keys or errors per check.
    batch: int = 50_000
    page: int = 5_000
    # The share of the time for the scrub (0: no scrub), the seconds within which each block is hashed again (0: without
    # a pause), and the rows of a block.
    scrub_share: float = 0.0
    scrub_period: float = 7 * 86400.0
    scrub_rows: int = 5_000
    cutover: str = ""
    timeout: float = 60.0
    # Distinguishes validations of the same name: the names of their objects have a part of its hash.
    nonce: int = 0

    def checked(self) -> Settings:
        """Return the settings, or raise ConfigError with everything that is wrong."""
        problems = [text for holds, text in self._rules() if not holds]
        if problems:
            raise ConfigError("; ".join(problems), cure="see trueup validate start --help")
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        numbers = (self.check_interval, self.row_error_delay, self.initial_delay, self.float_tolerance)
        return [
            (bool(self.tables), "--tables is missing"),
            (self.source != self.target, "--from and --to are the same node"),
            (self.mode in MODES, f"--mode must be {' or '.join(MODES)}, not {self.mode}"),
            (self.changes in SOURCES, f"--source must be one of {', '.join(SOURCES)}, not {self.changes}"),
            ((self.changes == "tube") == bool(self.tube), "--source tube and --tube NAME must be used together"),
            (self.changes != "tube" or not self.both_sides, "--both-sides needs --source log or changelog"),
            (self.numeric in ("value", "representation"), "numeric must be value or representation"),
            (
                all(math.isfinite(number) and number >= 0 for number in numbers),
                "delays and tolerances must be at least 0",
            ),
            (self.check_interval > 0, "--check-interval must be greater than 0"),
            (self.max_connections >= 3, "--max-connections must be at least 3"),
            (self.batch > 0 and self.page > 0 and self.scrub_rows > 0, "batch, page and scrub_rows must be at least 1"),
            (0 <= self.scrub_share <= 0.9, "--scrub-share must be between 0 and 0.9"),
            (math.isfinite(self.scrub_period) and self.scrub_period >= 0, "--scrub-period must be at least 0"),
            (self.max_rows_per_second >= 0, "--max-rows-per-second must be at least 0"),
            (self.max_retained_wal >= 0, "--max-retained-wal must be at least 0"),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values for the meta database."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Settings:
        """Read settings that this or another version has stored; unknown ones are dropped."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in ((_RENAMED.get(name, name), value) for name, value in stored.items())
            if name in known
        }
        return cls(**values)

    def is_stricter(self, before: Settings) -> bool:
        """Return whether rows that were equal with the settings `before` may differ with these."""
        return (self.mode == "full" and before.mode != "full") or self.float_tolerance < before.float_tolerance

    def updated(self, values: Mapping[str, Any]) -> Settings:
        """Return settings with other values; None means no change."""
        return replace(self, **{name: value for name, value in values.items() if value is not None}).checked()


def check_position(text: str) -> None:
    """Raise ConfigError if a text is not empty and not a position of the log."""
    if text and not re.fullmatch(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}", text):
        raise ConfigError(f"'{text}' is not a log position", cure="write it as PostgreSQL does: 16/B374D848")
