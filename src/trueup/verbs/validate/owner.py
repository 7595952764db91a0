"""Which objects on the nodes belong to a validation: replication slots and publications, or change logs.

Several meta databases may have a validation of the same name, also because one is a copy of the other (a dump, a
template, a restored backup). The name of an object has a hash of the validation and of the meta database in which it
was created: a validation uses and drops only objects whose name it would choose itself. A standby of the meta database
that was promoted is the same database.
"""

from __future__ import annotations

import hashlib
import logging

from trueup.capture.log import slot
from trueup.capture.log.publications import drop_from_publication
from trueup.capture.log.slot import SlotLost
from trueup.capture.triggers import tubes as tube_functions
from trueup.config.model import Node
from trueup.db.database_identity import identity
from trueup.db.node import connect, error_from_server
from trueup.verbs.validate.log import FULL_CHECK, target_side
from trueup.verbs.validate.meta import Meta, Stored
from trueup.verbs.validate.routes import name_parts
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.settings import CHANGELOG, Settings
from trueup.verbs.validate.triggers.sides import open_tubes, target_tube, tube_of

_LOGGER = logging.getLogger("trueup.validate")


def own_name(meta: Meta, settings: Settings) -> str:
    """Return the name of the objects of a validation on its source."""
    with meta.errors():
        home = identity(meta.connection)
    digest = hashlib.sha256(f"{settings.nonce} {home}".encode()).hexdigest()[:8]
    # The names of the triggers of a change log contain its name.
    return f"v_{settings.name[:16]}_{digest}" if settings.changes == CHANGELOG else f"trueup_{settings.name}_{digest}"


def claim(sessions: Sessions) -> None:
    """Raise SlotLost if the objects belong to another meta database; at a new start, choose names of its own."""
    meta, stored = sessions.meta, sessions.stored
    own = own_name(meta, stored.settings)
    if own == stored.slot:
        return
    if not stored.needs_new_start:
        raise SlotLost(
            f"the meta database on {meta.node.name} is a copy of another one, or was moved: {_shown(stored)} on"
            f" {sessions.nodes[0].name} belongs to validation {stored.name} of the other one",
            cure=f"{FULL_CHECK}; the next start creates objects of its own. {_cure(stored)}".rstrip(),
            node=sessions.nodes[0].name,
        )
    sessions.log(f"{_shown(stored)} belongs to another meta database and was left. {_cure(stored)}".rstrip())
    publication = own if stored.owns_publication else stored.publication
    meta.rows("take_names", name=stored.name, slot=own, publication=publication)
    sessions.reload()


def drop_objects(meta: Meta, stored: Stored, source: Node, target: Node) -> bool:
    """Drop slots and publications, or change logs, on both nodes; return whether those on the source existed."""
    settings = stored.settings
    if not _is_own(meta, stored):
        return False
    if settings.changes == CHANGELOG:
        if settings.both_sides:
            _drop_tube(target, settings, target_tube(stored).tube)
        return _drop_tube(source, settings, tube_of(stored))
    if settings.both_sides:
        side = target_side(stored)
        _drop_slot(target, side.slot, side.publication)
    if settings.changes != "log":
        # The reader of the tube stays: other validations must notice that pods were read.
        return False
    return _drop_slot(source, stored.slot, stored.publication if stored.owns_publication else "")


def _drop_tube(node: Node, settings: Settings, name: str) -> bool:
    with open_tubes(node, settings) as session:
        return tube_functions.drop_with_schema(session, name)


def _drop_slot(node: Node, name: str, publication: str) -> bool:
    try:
        with connect(node, application="trueup validate delete", read_only=False) as connection:
            return slot.drop(connection, name, publication)
    except Exception as error:
        raise error_from_server(error, node) from None


def stop_capture(meta: Meta, stored: Stored, source: Node, tables: tuple[str, ...]) -> None:
    """Take removed tables out of the publication or the change log of the validation."""
    settings = stored.settings
    if not _is_own(meta, stored):
        return
    if settings.changes == "log" and stored.owns_publication:
        try:
            with connect(source, application="trueup validate tables", read_only=False) as connection:
                drop_from_publication(connection, stored.publication, [name_parts(table) for table in tables])
        except Exception as error:
            raise error_from_server(error, source) from None
    elif settings.changes == CHANGELOG:
        with open_tubes(source, settings) as session:
            tube = tube_functions.find(session, tube_of(stored))
            for attached in tube.tables if tube else ():
                if attached.table in tables:
                    tube_functions.detach(session, tube_of(stored), attached.table)


def _is_own(meta: Meta, stored: Stored) -> bool:
    if own_name(meta, stored.settings) == stored.slot:
        return True
    _LOGGER.warning(f"{_shown(stored)} belongs to another meta database and was left. {_cure(stored)}".rstrip())
    return False


def _shown(stored: Stored) -> str:
    if stored.settings.changes == "tube":
        return f"the reader {stored.slot} of tube {stored.settings.tube}"
    return f"{'change log' if stored.settings.changes == CHANGELOG else 'replication slot'} {stored.slot}"


def _cure(stored: Stored) -> str:
    """Return how to remove the objects of a meta database that does not exist any more."""
    settings, start = stored.settings, "If that meta database does not exist any more, run on the source:"
    if settings.changes == "tube":
        return ""
    if settings.changes == "log":
        side = target_side(stored)
        cures = [_drop_text(stored.slot, stored.publication if stored.owns_publication else "")]
        cures += [_drop_text(side.slot, side.publication)] if settings.both_sides else []
    else:
        names = [stored.slot, *([target_tube(stored).tube] if settings.both_sides else [])]
        cures = [f"SELECT trueup_changes.tube_ensure_absent('{name}')" for name in names]
    return f"{start} {'; on the target: '.join(cures)}"


def _drop_text(name: str, publication: str) -> str:
    drop = f"; DROP PUBLICATION {publication}" if publication else ""
    return f"SELECT pg_drop_replication_slot('{name}'){drop}"
