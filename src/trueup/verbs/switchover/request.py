"""What the user asked of a switchover."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trueup.config.model import Node
from trueup.errors import ConfigError
from trueup.verbs.switchover.accepted import parse_accepted
from trueup.verbs.sync.identity.naming import find_name

EXECUTE = "execute"
ROLLBACK = "rollback"
# The path of one of the two up to the decision, which is not made.
REHEARSE = "rehearse"

DIGEST = "digest"
KEYS = "keys"
VALIDATED = "validated"
PROOFS = (DIGEST, KEYS, VALIDATED)

# Bytes; 0: no limit.
WAY_BACK_LIMIT = 10 * 1024**3

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


@dataclass(frozen=True)
class SwitchoverRequest:
    """A switchover of a sync; `first` is the database that the sync was started from, whichever is in use now."""

    sync: str
    first: Node
    second: Node
    # Maximum seconds of the pause.
    budget: float = 5.0
    proof: str = DIGEST
    # The pause begins when a round had at most this many keys.
    close_keys: int = 1000
    # Seconds to wait for locks on tables, for a running sync to stop, and for rounds to catch up.
    timeout: float = 60.0
    # Sessions per node that compare rows.
    jobs: int = 4
    # Patterns of the objects whose differences are accepted.
    accept_schema: tuple[str, ...] = ()
    # Maximum bytes of the change log of the way back; 0: no limit, None: as it is.
    way_back_limit: int | None = None
    # How applications reach the databases, if not as trueup does.
    first_address: str = ""
    second_address: str = ""
    # For `--proof validated`: the name of the validation, and the node that keeps it, if not one of the two.
    validation: str = ""
    meta: Node | None = None
    # Rehearse the rollback.
    rollback: bool = False
    # The folder of the report; empty: the current one.
    report_dir: str = ""

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise ConfigError("--budget must be more than 0 seconds", cure="write it as 5s, 500ms or 1m")
        if self.proof not in PROOFS:
            raise ConfigError(f"--proof: '{self.proof}' is unknown", cure=f"use one of {', '.join(PROOFS)}")
        parse_accepted(self.accept_schema)
        if self.proof != VALIDATED and (self.validation or self.meta):
            raise ConfigError(
                "--validation and --meta need --proof validated", cure="remove them, or add --proof validated"
            )

    def identified(self, *, both: bool = True, lost: Node | None = None) -> SwitchoverRequest:
        """Return the request with the name of the sync in its databases: see `sync.identity.naming`."""
        return replace(self, sync=find_name(self.first, self.second, self.sync, both=both, lost=lost))

    def route(self, action: str) -> Route:
        """Return the direction of an action: `execute`, `rollback` or `rehearse`."""
        if action == ROLLBACK or self.rollback:
            return Route(action, self.second, self.first)
        return Route(action, self.first, self.second)


@dataclass(frozen=True)
class Route:
    """One direction of a switchover: from the database in use to the other one."""

    action: str
    source: Node
    target: Node

    @property
    def decides(self) -> bool:
        """Whether the pause ends with the decision."""
        return self.action != REHEARSE


def seconds(text: str) -> float:
    """Return a duration such as `5s`, `500ms`, `1.5` or `2m` in seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|)\s*", text)
    if match is None:
        raise ConfigError(f"'{text}' is not a duration", cure="write it as 5s, 500ms or 1m")
    return float(match[1]) * _UNITS[match[2]]
