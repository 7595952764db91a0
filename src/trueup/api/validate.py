"""Validations as Python calls: start, stop, status, errors, update, delete, fence."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trueup.capture.log import slot
from trueup.config.load import load
from trueup.config.model import Config, Node
from trueup.db.node import connect, error_from_server
from trueup.engine.local import LocalEngine
from trueup.errors import ConfigError, TrueupError
from trueup.verbs.validate import findings
from trueup.verbs.validate.fence import Fence, put_fence, wait_for
from trueup.verbs.validate.findings import ErrorRow
from trueup.verbs.validate.meta import Meta, as_json, meta_nodes, meta_of, open_meta
from trueup.verbs.validate.run import run
from trueup.verbs.validate.settings import CHANGEABLE, CHANGELOG, Settings
from trueup.verbs.validate.status import Status, read_status

_NAME = re.compile(r"[a-z0-9_]{1,40}")
_STOP_SECONDS = 60.0
_FIXED = (
    "source", "target", "tables", "routes", "renames", "filters", "constants", "excludes", "changes", "tube",
    "publication", "numeric",
)  # fmt: skip


class Validations:
    """All validations that a meta database knows; `nodes` are where their tables are."""

    def __init__(
        self, *, meta: str = "", nodes: Mapping[str, str] | None = None, config: Config | str | None = None
    ) -> None:
        self.config = config if isinstance(config, Config) else load(config, nodes=nodes)
        self._meta = meta

    def node(self, name: str) -> Node:
        """A node of the configuration."""
        return self.config.select(names=[name], at_least=1)[0]

    def create(self, name: str, **given: Any) -> Settings:
        """Write a new validation down, or take one up again with other values for what may change."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' cannot be the name of a validation", cure="small letters, digits and _, at most 40"
            )
        values = {key: value for key, value in given.items() if value is not None}
        if values.get("cutover"):
            _check_position(values["cutover"])
        if "source" not in values:
            with self.meta_of(name) as meta:
                # Tables of an older version get what they lack.
                meta.make()
                return _taken_up(meta, name, values)
        needed = [option for key, option in (("target", "--to"), ("tables", "--tables")) if not values.get(key)]
        if needed:
            raise ConfigError(f"a new validation needs {' and '.join(needed)}", cure="see trueup validate start --help")
        settings = Settings(name, **values, seed=secrets.randbits(62)).checked()
        self.node(settings.source)
        with open_meta(self.node(self._meta or settings.target)) as meta:
            meta.make()
            if meta.get(name) is not None:
                return _taken_up(meta, name, values)
            own = f"trueup_{name}"
            meta.rows(
                "create", name=name, settings=as_json(settings.as_json()), slot=own,
                publication=settings.publication or own, owns=not settings.publication,
            )  # fmt: skip
        return settings

    def start(
        self, name: str, *, say: Callable[[str], None] = lambda text: None, engine: str = "auto", **options: Any
    ) -> str:
        """Run it in this process until it is stopped; gives the reason of the end."""
        with self.meta_of(name) as meta:
            stored = meta.need(name)
            node = meta.node
        nodes = self.node(stored.settings.source), self.node(stored.settings.target)
        if engine == "spark" or (engine == "auto" and (self.config.spark.master or self.config.spark.remote)):
            from trueup.verbs.validate.spark import run_on_spark, run_with_spark

            if stored.settings.changes != "log":
                return run_with_spark(name, nodes, node, self.config, say=say, **options)

            return run_on_spark(name, nodes, node, self.config, say=say, **options)
        # Of the connections to each node, some are for reading the log, for questions, and for the meta database.
        local = LocalEngine(max(1, stored.settings.max_connections - 2))
        try:
            return run(name, nodes, node, local, say=say, **options)
        finally:
            local.close()

    def stop(self, name: str, *, timeout: float = _STOP_SECONDS) -> bool:
        """Ask the running process to end, and wait for it; whether it was running."""
        with self.meta_of(name) as meta:
            # Also one that has lost its session for the moment: it reads this when it is back.
            meta.rows("want", name=name, wanted="stop")
            if not meta.is_running(name):
                return False
            give_up = time.monotonic() + timeout
            while meta.is_running(name):
                if time.monotonic() > give_up:
                    raise TrueupError(
                        f"the validation {name} did not end within {timeout:g} s", cure="look at its log; it will end"
                    )
                time.sleep(0.1)
        return True

    def status(self, name: str) -> Status:
        """How it stands."""
        with self.meta_of(name) as meta:
            return read_status(meta, name)

    def names(self) -> list[tuple[str, str]]:
        """Name and meta node of all that are known."""
        found = []
        for node in meta_nodes(self.config, self._meta):
            with open_meta(node) as meta:
                if meta.exists():
                    found += [(row["name"], node.name) for row in meta.rows("names")]
        return found

    def errors(self, name: str, *, state: str = "new", most: int | None = None) -> list[ErrorRow]:
        """Its errors."""
        with self.meta_of(name) as meta:
            return findings.listed(meta, name, state=state, most=most)

    def mark(self, name: str, ids: Sequence[int] | None, state: str) -> int:
        """Ignore or resolve errors by hand (None: all); gives how many."""
        with self.meta_of(name) as meta:
            return findings.mark(meta, name, ids, state)

    def clear(self, name: str, ids: Sequence[int] | None) -> int:
        """Forget errors (None: all); gives how many."""
        with self.meta_of(name) as meta:
            return findings.clear(meta, name, ids)

    def update(self, name: str, **given: Any) -> Settings:
        """Change settings, also while it runs."""
        unknown = set(given) - set(CHANGEABLE)
        if unknown:
            raise ConfigError(f"{', '.join(sorted(unknown))} cannot be changed", cure="delete it, and start a new one")
        with self.meta_of(name) as meta:
            settings = meta.need(name).settings.updated(given)
            if settings.cutover:
                _check_position(settings.cutover)
            meta.rows("settings", name=name, settings=as_json(settings.as_json()))
            return settings

    def delete(self, name: str) -> bool:
        """Stop it, and remove its slot and publication or its change log, and all it noted; whether there was one."""
        self.stop(name)
        with self.meta_of(name) as meta:
            stored = meta.need(name)
            source = self.node(stored.settings.source)
            dropped = False
            if stored.settings.changes == "log":
                connection = connect(source, application="trueup validate delete", read_only=False)
                try:
                    own = stored.publication if stored.owns_publication else ""
                    dropped = slot.drop(connection, stored.slot, own)
                except Exception as error:
                    raise error_from_server(error, source) from None
                finally:
                    connection.close()
            elif stored.settings.changes == CHANGELOG:
                from trueup.verbs.validate.tubes import drop_changelog

                dropped = drop_changelog(source, stored.settings)
            meta.rows("delete", name=name)
        return dropped

    def fence(
        self, name: str, *, timeout: float = 300.0, told: Callable[[Status], None] = lambda status: None
    ) -> Fence:
        """Write a marker, and wait until it is validated."""
        with self.meta_of(name) as meta:
            stored = meta.need(name)
            position = put_fence(self.node(stored.settings.source))
            return wait_for(meta, name, position, timeout=timeout, told=told)

    def meta_of(self, name: str) -> AbstractContextManager[Meta]:
        """The meta database that knows a validation: the named one, else the one of all nodes that does."""
        return meta_of(self.config, name, self._meta)


def _taken_up(meta: Meta, name: str, given: dict[str, Any]) -> Settings:
    """The validation that is there: what names its rows must not be another one."""
    there = meta.need(name).settings
    other = [key for key in _FIXED if key in given and getattr(there, key) != given[key]]
    if other:
        raise ConfigError(
            f"the validation {name} is there, with another value for {', '.join(other)}",
            cure=f"choose another --name, or trueup validate delete {name}",
        )
    settings = there.updated(given)
    meta.rows("settings", name=name, settings=as_json(settings.as_json()))
    return settings


def _check_position(text: str) -> None:
    if not re.fullmatch(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}", text):
        raise ConfigError(f"'{text}' is no position of the log", cure="write it as PostgreSQL does: 16/B374D848")
