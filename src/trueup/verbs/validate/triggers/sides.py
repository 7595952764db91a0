"""The tubes of a validation: one on the source and, with both sides, a change log on the target."""

from __future__ import annotations

from dataclasses import dataclass

from trueup.capture.triggers.readers import Mark
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.settings import CHANGELOG, Settings

# The schema of change logs. A sync has another one, because the validation must see what a sync writes.
CHANGES_SCHEMA = "trueup_changes"


@dataclass(frozen=True)
class TubeSide:
    """The tube of one node: what the meta database has about it."""

    # The place of the node in `Sessions.servers`, and what it is.
    number: int
    node: str
    tube: str
    position: int | None
    # The last round that the meta database has, and the statement that returns the pods of it.
    last: Mark
    pods: str
    # Whether reading starts at a new position: also if a first start ended before it had one on this node.
    is_new: bool


def source_tube(stored: Stored) -> TubeSide:
    """Return the tube on the source."""
    last = Mark(stored.round, stored.token)
    return TubeSide(0, "source", tube_of(stored), stored.position, last, "pods", stored.needs_new_start)


def target_tube(stored: Stored) -> TubeSide:
    """Return the change log on the target; both nodes may be one database."""
    last = Mark(stored.target_round, stored.target_token)
    is_new = stored.needs_new_start or stored.target_position is None
    return TubeSide(1, "target", f"{stored.slot}_t", stored.target_position, last, "target_pods", is_new)


def tube_of(stored: Stored) -> str:
    """Return the name of the tube that a validation processes."""
    return stored.slot if stored.settings.changes == CHANGELOG else stored.settings.tube


def open_tubes(node: Node, settings: Settings) -> Session:
    """Open a session with the schema of the tubes of the source, or of the change logs."""
    return Session(node, CHANGES_SCHEMA if settings.changes == CHANGELOG else "tube")
