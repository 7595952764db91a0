"""Records a MATCH of `trueup diff` or `trueup check` as the certificate of a table.

Such a run is like one pass of the scrub, made by another process: the positions of the validation are read before the
snapshots are taken, and every change from there on is judged apart. Which blocks are touched meanwhile is known by a
*watch*: the run asks for a new one, the process of the validation begins to record for each block whether it is touched
in it, and only then the snapshots are taken.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from trueup.config.model import Config
from trueup.db.names import display_name
from trueup.db.server_identity import ServerPosition
from trueup.db.storable import as_json
from trueup.errors import ConfigError, TrueupError
from trueup.proof import store
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable, Compared, Rules
from trueup.rows.keys import Block
from trueup.rows.proven import ComparedTable
from trueup.rows.spec import TableSpec
from trueup.verbs.validate.meta import Meta, Stored, meta_of

_POLL_SECONDS = 0.1
# A round of the validation may take that long. After it, all blocks count as touched.
_WATCH_SECONDS = 30.0
# What must not change while rows are compared: changes of it mean that changes of rows may have been missed.
_EVENTS = (
    "target", "stage", "identity", "rules", "unchecked", "missed", "requested", "capture", "target_capture",
    "target_problem", "voids",
)  # fmt: skip


@dataclass(frozen=True)
class Began:
    """The validation and a table of it, before the snapshots were taken."""

    stored: Stored
    # The row of the table; None: it is not validated.
    table: dict[str, Any] | None
    at: datetime
    watch: int
    # Whether the process of the validation records which blocks are touched in the watch.
    is_exact: bool


class Recorder:
    """Records certificates in the meta database of a validation."""

    def __init__(self, config: Config, name: str) -> None:
        """Check the validation. Raises ConfigError if it does not exist, or cannot take certificates."""
        self._config = config
        self._name = name
        with meta_of(config, name) as meta:
            meta.make()
            stored = meta.need(name)
        if stored.needs_new_start:
            why = "it has lost changes" if stored.has_begun else "it was never started"
            cure = f"start it first: trueup validate start {name}"
            raise ConfigError(f"validation {name} cannot take certificates: {why}", cure=cure)

    def begin(self, spec: TableSpec, plan: Sequence[Block]) -> Recording:
        """Begin a watch, and read the positions of the validation."""
        with meta_of(self._config, self._name) as meta:
            return Recording(self._config, *_begin(meta, self._name, display_name(spec.schema, spec.table), plan))


@dataclass(frozen=True)
class Recording:
    """One table while a run compares its rows."""

    config: Config
    source: str
    began: Began
    blocks: tuple[Block, ...]

    @property
    def validation(self) -> str:
        """The name of the validation."""
        return self.began.stored.name

    def record(self, compared: ComparedTable) -> str:
        """Record the certificate of the table; return why that was not possible ("" if it was)."""
        name = self.validation
        try:
            with meta_of(self.config, name) as meta, meta.transaction():
                # A validation that starts, or settings that change, wait for the end of this transaction.
                meta.rows("lock_row", name=name)
                return self._record(meta, compared)
        except TrueupError as error:
            return str(error)

    def _record(self, meta: Meta, compared: ComparedTable) -> str:
        began, name = self.began, self.validation
        table = _table(meta, name, self.source)
        reason = _why_not(began, meta.need(name), table, compared)
        if reason or table is None:
            return reason
        certificate = _certificate(began, meta.value("clock"), table, compared)
        if not store.put(meta.connection, certificate):
            return "the certificate was voided, or a later one was recorded, while the rows were compared"
        digests = dict(compared.ranges)
        lines = [
            {"id": block.id, "rows": digest.count, "hash_sum": str(digest.sum)}
            for block in store.blocks(meta.connection, name, self.source)
            if (digest := digests.get(block.block)) is not None
        ]
        meta.rows(
            "certified_blocks", name=name, source=self.source, now=began.at, lines=as_json(lines), watch=began.watch,
            is_exact=began.is_exact, source_lsn=began.stored.position, target_lsn=began.stored.target_position,
            seed=compared.spec.seed,
        )  # fmt: skip
        meta.rows("certified", name=name, source=self.source, now=began.at)
        meta.rows("gap_closed", name=name)
        return ""


def _begin(meta: Meta, name: str, source: str, plan: Sequence[Block]) -> tuple[str, Began, tuple[Block, ...]]:
    with meta.transaction():
        # A starting process writes the row before it takes its lock: then it finds the new watch and the blocks.
        meta.rows("lock_row", name=name)
        blocks = store.blocks(meta.connection, name, source)
        if not blocks and _table(meta, name, source) is not None:
            store.replace_all(meta.connection, name, source, [CertificateBlock(block) for block in plan])
        watch = int(meta.value("begin_watch", name=name))
        is_exact = not meta.is_running(name)
    deadline = time.monotonic() + _WATCH_SECONDS
    has_asked = is_exact
    while not (is_exact and has_asked) and time.monotonic() < deadline:
        stored, is_over = meta.need(name), not meta.is_running(name)
        is_exact = stored.watch_known >= watch or is_over
        # A process that has just started asks the syncer for its position in its first round.
        has_asked = stored.syncer is not None or is_over
        if not (is_exact and has_asked):
            time.sleep(_POLL_SECONDS)
    at = meta.value("clock")
    # Events after this time void the certificate; all changes from the position on are judged, and in the watch.
    began = Began(meta.need(name), _table(meta, name, source), at, watch, is_exact)
    with meta.errors():
        blocks = store.blocks(meta.connection, name, source)
    return source, began, tuple(block.block for block in blocks)


def _table(meta: Meta, name: str, source: str) -> dict[str, Any] | None:
    return {row["source"]: row for row in meta.rows("tables", name=name)}.get(source)


def _why_not(began: Began, now: Stored, table: Mapping[str, Any] | None, compared: ComparedTable) -> str:
    """Return why a certificate cannot be recorded; "" if it can."""
    before, name = began.table, now.name
    if before is None or table is None:
        return f"it is not a table of validation {name}"
    if table["stage"] != "running" or table["rules"] is None:
        return f"validation {name} does not validate it: {table['reason'] or 'start the validation again'}"
    if table["identity"] is None or not {"source", "target"} <= {*began.stored.servers}:
        return f"validation {name} has not looked at the table and its servers yet; run the command again"
    if (began.stored.syncer or 0) < (began.stored.position or 0):
        # What it still applies of them is not judged.
        what = f"the syncer has not applied all changes from before the start of validation {name} yet"
        return f"{what}; run the command again when the validation has read changes"
    if now.created_at != began.stored.created_at or now.settings != began.stored.settings:
        return f"the settings of validation {name} were changed while the rows were compared"
    if now.gap != began.stored.gap or _systems(now) != _systems(began.stored):
        return f"validation {name} has lost changes, or a server was replaced, while the rows were compared"
    if any(before[event] != table[event] for event in _EVENTS):
        return "the table or the capture of its changes was altered while the rows were compared"
    return _other_tables(began.stored, table["identity"], compared) or _other_rules(
        Rules.from_json(table["rules"]), compared.spec
    )


def _systems(stored: Stored) -> dict[str, tuple[Any, Any]]:
    return {side: (server["system"], server["timeline"]) for side, server in stored.servers.items()}


def _other_tables(stored: Stored, identity: Mapping[str, Any], compared: ComparedTable) -> str:
    """Return why the compared tables are not those of the validation, or of an earlier state; "" if they are."""
    for side, node in (("source", stored.settings.source), ("target", stored.settings.target)):
        if node not in compared.tables:
            return f"node {node} of the validation was not compared"
        server, oid = compared.tables[node]
        before = ServerPosition.from_json(stored.servers[side])
        other = server.why_other(before)
        if not other and server.position is None and before.position is not None:
            # Changes that the validation has judged may be missing there.
            other = "was read from a standby"
        if not other and oid != identity[side]:
            other = "has another table of this name"
        if other:
            return f"{node} {other}, compared with the validation"
    return ""


def _other_rules(rules: Rules, spec: TableSpec) -> str:
    """Return why rows that the run found equal may differ by the rules of the validation; "" if they cannot."""
    columns = {column.name: column.type for column in spec.columns}
    if dict(rules.source) != columns or dict(rules.target) != columns:
        return "the validation compares other columns than this run"
    if rules.key != spec.key_names:
        return f"the validation has the key {', '.join(rules.key)}"
    if replace(rules.compared, digest="") != replace(Compared.of(spec), digest=""):
        return "the validation compares rows by other rules (mode, filter, tolerance, numeric) than this run"
    return ""


def _certificate(began: Began, now: datetime, table: Mapping[str, Any], compared: ComparedTable) -> Certificate:
    stored, identity, source = began.stored, table["identity"], table["source"]
    rules = Rules.from_json(table["rules"])
    sides = {
        side: replace(ServerPosition.from_json(stored.servers[side]), position=position)
        for side, position in (("source", stored.position), ("target", stored.target_position))
    }
    return Certificate(
        stored.name, source, compared.how,
        CertifiedTable(stored.settings.source, source, identity["source"], rules.source, sides["source"]),
        CertifiedTable(stored.settings.target, table["target"], identity["target"], rules.target, sides["target"]),
        rules.key, Compared.of(compared.spec), began.at, now,
    )  # fmt: skip
