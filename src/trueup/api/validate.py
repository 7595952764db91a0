"""The class `Validation`: one validation by name, with everything that `trueup validate` can do."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from trueup.api.parameters import configuration
from trueup.config.model import Config, Node
from trueup.db.storable import as_json
from trueup.errors import CheckFailed, ConfigError, TrueupError
from trueup.proof import store as proofs
from trueup.store import TaskStore
from trueup.task.open import open_task
from trueup.verbs.validate import change_tables, row_errors
from trueup.verbs.validate.fence import Fence, put_fence, refused, wait_for
from trueup.verbs.validate.meta import Meta, Stored, find_validation, meta_nodes, meta_of, open_meta
from trueup.verbs.validate.on_spark.lasting import run_lasting
from trueup.verbs.validate.owner import drop_objects, own_name, stop_capture
from trueup.verbs.validate.proving.prove import Proof, prove, summary_of
from trueup.verbs.validate.row_errors import ErrorRow
from trueup.verbs.validate.settings import FIXED, Settings, check_position
from trueup.verbs.validate.status import Status, read_status

_NAME = re.compile(r"[a-z0-9_]{1,40}")
# A proof of both sides needs certificates.
_SHARE_OF_PROOF = 0.05
_PROVE_AGAIN = "nothing was changed on any node; prove the tables again"
_LOGGER = logging.getLogger("trueup.validate")


class Validation:
    """The validation `name`. Its settings, progress and errors are stored in the meta database.

    `meta` is the node of the meta database; without it, a new validation uses its target, and an existing one is
    searched on all nodes. Nodes are those of the configuration, or of `nodes` (name to address). Nothing stays open
    between calls: other processes may use the same validation.
    """

    def __init__(
        self,
        name: str,
        *,
        meta: str = "",
        nodes: Mapping[str, str] | None = None,
        config: Config | str | None = None,
    ) -> None:
        self.name = name
        self.config = configuration(config, nodes)
        self._meta_node = meta

    @classmethod
    def all(
        cls, *, meta: str = "", nodes: Mapping[str, str] | None = None, config: Config | str | None = None
    ) -> tuple[Validation, ...]:
        """Return all validations that are stored on the node `meta`, or on any node."""
        loaded = configuration(config, nodes)
        validations: list[Validation] = []
        for node in meta_nodes(loaded, meta):
            with open_meta(node) as session:
                names = [row["name"] for row in session.rows("names")] if session.exists() else []
            validations += [cls(name, meta=node.name, config=loaded) for name in names]
        return tuple(validations)

    def create(
        self,
        *,
        source: str | None = None,
        target: str | None = None,
        tables: Sequence[str] | None = None,
        routes: Sequence[str] | None = None,
        renames: Sequence[str] | None = None,
        filters: Sequence[str] | None = None,
        allow_functions: Sequence[str] | None = None,
        constants: Sequence[str] | None = None,
        exclude_columns: Sequence[str] | None = None,
        syncer: str | None = None,
        changes: Literal["log", "tube", "changelog"] | None = None,
        both_sides: bool | None = None,
        tube: str | None = None,
        publication: str | None = None,
        numeric: Literal["value", "representation"] | None = None,
        max_connections: int | None = None,
        batch: int | None = None,
        page: int | None = None,
        scrub_rows: int | None = None,
        query_timeout: float | None = None,
        mode: Literal["full", "fast"] | None = None,
        check_interval: float | None = None,
        row_error_delay: float | None = None,
        initial_delay: float | None = None,
        float_tolerance: float | None = None,
        cutover: str | None = None,
        max_rows_per_second: int | None = None,
        max_retained_wal: int | None = None,
        scrub_share: float | None = None,
        scrub_period: float | None = None,
    ) -> Settings:
        """Store a new validation, or change the settings of the existing one; return its settings.

        A new validation needs `source`, `target` and `tables`; other settings have the defaults of `Settings`. One that
        never started successfully is replaced. For an existing one, None means no change. Raises ConfigError if a
        setting is wrong, or differs from one that cannot be changed (nodes, tables, routes, source of changes), and
        CheckFailed if the validation runs with other settings. Does not start anything.
        """
        values = _settings(locals())
        if source is not None or allow_functions:
            allowed = self.config.expressions.with_functions(allow_functions)
            values |= {"allow_functions": allowed.functions, "allow_extensions": allowed.extensions}
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"'{self.name}' is not a valid name of a validation",
                cure="use 1 to 40 lower-case letters, digits and underscores",
            )
        check_position(values.get("cutover", ""))
        if source is None:
            with self._meta() as meta:
                # Adds columns that an older version did not create.
                meta.make()
                return self._change(meta, values, while_running=False)
        missing = [option for key, option in (("target", "--to"), ("tables", "--tables")) if not values.get(key)]
        if missing:
            raise ConfigError(
                f"a new validation needs {' and '.join(missing)}", cure="see trueup validate start --help"
            )
        defaults = {"scrub_share": _SHARE_OF_PROOF} if both_sides else {}
        settings = Settings(self.name, **{**defaults, **values}, nonce=secrets.randbits(62)).checked()
        self._node(settings.source)
        if not self._meta_node:
            self._refuse_other_home(settings.target)
        with open_meta(self._node(self._meta_node or settings.target)) as meta:
            meta.make()
            with meta.transaction():
                meta.rows("lock_row", name=self.name)
                stored = meta.get(self.name)
                if stored is not None and (stored.has_begun or meta.is_running(self.name)):
                    return self._change(meta, values, while_running=False)
                if stored is not None:
                    self._replace(meta, stored)
                own = own_name(meta, settings)
                meta.rows(
                    "create", name=self.name, settings=as_json(settings.as_json()), slot=own,
                    publication=settings.publication or own, owns=not settings.publication,
                )  # fmt: skip
        return settings

    def _refuse_other_home(self, target: str) -> None:
        found = find_validation(self.config, self.name)
        if found and target not in {node.name for node in found}:
            raise CheckFailed(
                [f"validation {self.name} exists in the meta database on {found[0].name}"],
                cure=f"use another --name, or choose with --meta: --meta {found[0].name} for the existing one,"
                f" --meta {target} for a second one",
            )

    def _replace(self, meta: Meta, stored: Stored) -> None:
        """Remove a validation whose first start failed; its settings may be what was wrong."""
        try:
            drop_objects(meta, stored, *self._nodes(stored.settings))
        except TrueupError as error:
            # Its source may be what was wrong.
            _LOGGER.warning(f"what the failed start of {self.name} created on its source was not removed: {error}")
        meta.rows("delete", name=self.name)

    def _change(self, meta: Meta, values: dict[str, Any], *, while_running: bool) -> Settings:
        """Change the settings of the existing validation; raise ConfigError for those that cannot be changed."""
        with meta.transaction():
            meta.rows("lock_row", name=self.name)
            before = meta.need(self.name).settings
            differing = [key for key in FIXED if key in values and getattr(before, key) != values[key]]
            if differing:
                raise ConfigError(
                    f"validation {self.name} already exists with another value of {', '.join(differing)}",
                    cure=f"change its tables with trueup validate add or remove, use another --name, or run trueup"
                    f" validate delete {self.name}",
                )
            settings = before.updated(values)
            if settings != before:
                if not while_running and meta.is_running(self.name):
                    raise CheckFailed(
                        [f"validation {self.name} is already running; its settings were not changed"],
                        cure=f"change them with trueup validate update {self.name}, or stop it first",
                    )
                meta.rows("settings", name=self.name, settings=as_json(settings.as_json()))
                if settings.is_stricter(before):
                    missed = "rows were compared with a weaker mode or tolerance"
                    meta.rows("missed", name=self.name, missed=missed)
                    proofs.void(meta.connection, self.name, missed)
        return settings

    def start(
        self, *, engine: Literal["auto", "spark", "local"] | None = None, log: Callable[[str], None] = _LOGGER.info
    ) -> str:
        """Run the validation in this process until it is stopped; return the reason of the end.

        `engine` is by default that of the configuration. With "auto", threads begin, and Spark takes over after
        `local_seconds`, or from the beginning if this program has a session or a master is configured. If Spark fails,
        threads continue; with "spark", that raises EngineError.

        `log` gets the messages (default: the logger `trueup.validate`). Raises SlotLost if changes were lost, and
        CheckFailed if the validation is already running. After a failure or a kill, the next start continues from the
        last checkpoint.
        """
        with self._meta() as meta:
            _add_columns(meta)
            settings, meta_node = meta.need(self.name).settings, meta.node
        nodes = self._nodes(settings)
        spark = replace(self.config.spark, engine=engine) if engine else self.config.spark
        return run_lasting(settings, nodes, meta_node, spark, log)

    def stop(self, *, timeout: float = 60.0) -> bool:
        """Request the running process to stop, and wait for it; return whether it was running."""
        with self._meta() as meta:
            # A process that is reconnecting reads the request when it is connected again.
            if not meta.request_stop(self.name):
                return False
            deadline = time.monotonic() + timeout
            while meta.is_running(self.name):
                if time.monotonic() > deadline:
                    raise TrueupError(
                        f"validation {self.name} did not stop within {timeout:g} s; it stops after its current step",
                        cure=f"see its log, or wait with trueup validate stop {self.name} --timeout",
                    )
                time.sleep(0.1)
        return True

    def status(self) -> Status:
        """Return positions, counts, pending rows and errors, in one snapshot of the meta database."""
        with self._meta() as meta:
            return read_status(meta, self.name)

    def started_at(self) -> datetime | None:
        """Return when the validation was last started: when its sessions were open and its tables planned."""
        with self._meta() as meta:
            return meta.need(self.name).started_at

    def errors(self, *, state: str = "new", limit: int | None = None) -> list[ErrorRow]:
        """Return the errors in a state (new, ignored, resolved, all), the oldest first."""
        with self._meta() as meta:
            return row_errors.list_errors(meta, self.name, state=state, limit=limit)

    def count_errors(self, *, state: str = "new") -> int:
        """Return the number of errors in a state (new, ignored, resolved, all)."""
        with self._meta() as meta:
            return row_errors.count_errors(meta, self.name, state=state)

    def ignore(self, ids: Sequence[int] | None) -> int:
        """Ignore errors (None: all): they stay listed and do not count. Return the number of errors."""
        with self._meta() as meta:
            return row_errors.set_state(meta, self.name, ids, "ignored")

    def resolve(self, ids: Sequence[int] | None) -> int:
        """Resolve errors by hand (None: all); return the number of errors."""
        with self._meta() as meta:
            _add_columns(meta)
            return row_errors.set_state(meta, self.name, ids, "resolved")

    def clear(self, ids: Sequence[int] | None) -> int:
        """Delete errors (None: all); return the number of errors."""
        with self._meta() as meta:
            _add_columns(meta)
            return row_errors.clear(meta, self.name, ids)

    def update(
        self,
        *,
        mode: Literal["full", "fast"] | None = None,
        check_interval: float | None = None,
        row_error_delay: float | None = None,
        initial_delay: float | None = None,
        float_tolerance: float | None = None,
        cutover: str | None = None,
        max_rows_per_second: int | None = None,
        max_retained_wal: int | None = None,
        scrub_share: float | None = None,
        scrub_period: float | None = None,
    ) -> Settings:
        """Change settings (None: no change), also while the validation runs; return the settings."""
        values = _settings(locals())
        check_position(values.get("cutover", ""))
        with self._meta() as meta:
            return self._change(meta, values, while_running=True)

    def add(
        self,
        tables: Sequence[str],
        *,
        routes: Sequence[str] = (),
        renames: Sequence[str] = (),
        filters: Sequence[str] = (),
        constants: Sequence[str] = (),
        exclude_columns: Sequence[str] = (),
        allow_functions: Sequence[str] = (),
        timeout: float = 60.0,
    ) -> tuple[str, ...]:
        """Add tables with options about them, also while the validation runs; return the names of the new tables.

        Their changes are validated from now on (if the validation is stopped: from its next start). Rows that were
        there before are scrubbed once; until then the tables are not validated. Raises ConfigError or CheckFailed, and
        changes nothing, if a table cannot be validated or an option is wrong.
        """
        with self._meta() as meta:
            meta.make()
            settings = meta.need(self.name).settings
            before = {row["source"] for row in meta.rows("tables", name=self.name)}
            options = replace(
                settings, routes=tuple(routes), renames=tuple(renames), filters=tuple(filters),
                constants=tuple(constants), excludes=tuple(exclude_columns), allow_functions=tuple(allow_functions),
            )  # fmt: skip
            nodes = self._nodes(settings)
            number = change_tables.add(meta, self.name, nodes, tables, options)
            change_tables.wait_until_applied(meta, self.name, number, timeout=timeout)
            return tuple(row["source"] for row in meta.rows("tables", name=self.name) if row["source"] not in before)

    def remove(self, tables: Sequence[str], *, timeout: float = 60.0) -> tuple[str, ...]:
        """Remove tables with their counts, pending rows and errors, also while the validation runs; return their names.

        They are taken out of the publication or the change log of the validation.
        """
        with self._meta() as meta:
            meta.make()
            names = change_tables.own_names(meta, self.name, tables)
            number = change_tables.remove(meta, self.name, tables)
            change_tables.wait_until_applied(meta, self.name, number, timeout=timeout)
            stored = meta.need(self.name)
            stop_capture(meta, stored, self._node(stored.settings.source), tuple(names))
        return tuple(names)

    def restart(self, tables: Sequence[str], *, timeout: float = 60.0) -> tuple[str, ...]:
        """Forget counts, pending rows and errors of tables and validate them again; return their names.

        All their rows are scrubbed once; until then the tables are not validated. A table that was stopped is planned
        again. Works also while the validation runs.
        """
        with self._meta() as meta:
            meta.make()
            names = change_tables.own_names(meta, self.name, tables)
            number = change_tables.restart(meta, self.name, tables)
            change_tables.wait_until_applied(meta, self.name, number, timeout=timeout)
        return tuple(names)

    def delete(self) -> bool:
        """Stop the validation; remove its slot and publication or its change log, and its rows in the meta database.

        With the last validation, the tables of the meta database are dropped, and the schema `trueup` if nothing else
        is in it. Returns whether the slot or the change log existed.
        """
        self.stop()
        with self._meta() as meta:
            stored = meta.need(self.name)
            existed = drop_objects(meta, stored, *self._nodes(stored.settings))
            meta.delete(self.name)
        return existed

    def fence(self, *, timeout: float = 300.0, on_wait: Callable[[Status], object] = lambda status: None) -> Fence:
        """Write a marker on the source, and wait until everything before it is validated.

        `on_wait` is called with the status while it waits. A time-out is a result (`validated` is False), not an error.
        """
        with self._meta() as meta:
            stored = meta.need(self.name)
            position, other = put_fence(self._node(stored.settings.source), stored)
            if other:
                return refused(read_status(meta, self.name), position, other)
            return wait_for(meta, self.name, position, timeout=timeout, on_wait=on_wait)

    def prove(
        self,
        tables: Sequence[str] | None = None,
        *,
        timeout: float = 60.0,
        record: bool = True,
        task_db: str | None = None,
    ) -> Proof:
        """Prove tables (None: all) by their certificates and every captured change since; return the verdicts.

        Writes a marker into the logs of both nodes and waits until everything before it is judged. What is not proven
        (no valid certificate, changes of the target that are not captured, a time-out) is INCOMPLETE, with the reasons.
        With `record`, the verdicts are added to the history of the tables, in the task store.
        """
        if not record:
            return self._prove(tables, timeout)
        with self._meta() as meta:
            settings = meta.need(self.name).settings
        cluster, nodes = self._scope(settings.source, settings.target)
        request = {"validation": self.name, "nodes": nodes, "tables": list(tables or ())}
        with (
            TaskStore(task_db, configured=self.config.tasks.task_db) as store,
            open_task(
                store, "TABLES_PROVE", cluster=cluster, table=self.name, context=request, on_interrupt=_PROVE_AGAIN
            ) as task,
        ):
            proof = self._prove(tables, timeout)
            reasons = [f"{it.table}: {why}" for it in proof.tables if it.verdict == "INCOMPLETE" for why in it.reasons]
            summary = {**summary_of(proof), "nodes": nodes}
            task.finish(summary, failed=proof.verdict == "INCOMPLETE", error="; ".join(reasons[:10]))
        return proof

    def _scope(self, *pair: str) -> tuple[str, str]:
        """Return the cluster of both nodes, if there is one, and the nodes in its order: as a diff of it has them."""
        named = [(name, nodes) for name, nodes in self.config.clusters.items() if {*nodes} == {*pair}]
        cluster, nodes = named[0] if len(named) == 1 else ("", pair)
        return cluster, ",".join(nodes)

    def _prove(self, tables: Sequence[str] | None, timeout: float) -> Proof:
        with self._meta() as meta:
            meta.make()
            names = change_tables.own_names(meta, self.name, tables) if tables else None
            known = [row["source"] for row in meta.rows("tables", name=self.name)]
            nodes = self._nodes(meta.need(self.name).settings)
            return prove(meta, self.name, nodes, known if names is None else list(names), timeout=timeout)

    def _meta(self) -> AbstractContextManager[Meta]:
        return meta_of(self.config, self.name, self._meta_node)

    def _nodes(self, settings: Settings) -> tuple[Node, Node]:
        return self._node(settings.source), self._node(settings.target)

    def _node(self, name: str) -> Node:
        return self.config.select(names=[name], at_least=1)[0]


def _settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not None, as settings: some have other names there, and lists are tuples."""
    names = {"exclude_columns": "excludes", "query_timeout": "timeout"}
    return {
        names.get(name, name): tuple(value) if isinstance(value, (list, tuple)) else value
        for name, value in parameters.items()
        if name != "self" and value is not None
    }


def _add_columns(meta: Meta) -> None:
    """Add what the tables of an older version lack; a role that only uses the tables need not be able to."""
    if not proofs.is_made(meta.connection):
        meta.make()
