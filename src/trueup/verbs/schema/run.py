"""The path of the verb: connect, read the catalog of each node, compare, return the result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trueup.config.model import Node
from trueup.config.wording import suggest
from trueup.db import catalog
from trueup.db.names import display_part
from trueup.db.node import connect, error_from_server
from trueup.db.patterns import Patterns
from trueup.db.schema import Item, Name, compare_schemas, read_schema
from trueup.errors import ConfigError
from trueup.report.model import Verdict
from trueup.store import TaskStore
from trueup.task.open import open_task
from trueup.verbs.schema.model import SchemaResult


@dataclass(frozen=True)
class SchemaRequest:
    """The nodes, and what to compare: these schemas, these tables, or everything."""

    nodes: tuple[Node, ...]
    cluster: str = ""
    schemas: tuple[str, ...] = ()
    tables: Patterns | None = None


@dataclass(frozen=True)
class _Read:
    """The definitions of one node."""

    server: catalog.Server
    schemas: tuple[str, ...]
    items: Mapping[Name, Item]


def run(request: SchemaRequest, *, store: TaskStore) -> SchemaResult:
    """Compare the schemas of all nodes; record the request and the result in the task store."""
    context = {
        "nodes": ",".join(node.name for node in request.nodes),
        "schemas": list(request.schemas),
        "tables": str(request.tables or ""),
    }
    scope = str(request.tables or "") or ", ".join(request.schemas) or "all schemas"
    with open_task(
        store,
        "SCHEMA_DIFF",
        cluster=request.cluster,
        table=scope,
        context=context,
        on_interrupt="nothing was changed on any node; run the command again",
    ) as task:
        result = _compare(request, task.task_id)
        failed = result.verdict == "INCOMPLETE"
        task.finish(result.summary(), failed=failed, error="; ".join(result.incomplete))
        return result


def _compare(request: SchemaRequest, task_id: str) -> SchemaResult:
    started = time.monotonic()
    with ThreadPoolExecutor(len(request.nodes), thread_name_prefix="trueup-node") as threads:
        results = threads.map(lambda node: _read(node, request, task_id), request.nodes)
        read = dict(zip((node.name for node in request.nodes), results, strict=True))
    _check_names(request, list(read.values()))
    differences = compare_schemas({name: node.items for name, node in read.items()})
    unreadable = any(difference.how == "unreadable" for difference in differences)
    verdict: Verdict = "INCOMPLETE" if unreadable else "DIFFER" if differences else "MATCH"
    return SchemaResult(
        verdict=verdict,
        nodes=tuple(read),
        objects={name: len(node.items) for name, node in read.items()},
        differences=tuple(differences),
        remarks=tuple(catalog.same_databases({name: node.server for name, node in read.items()})),
        seconds=round(time.monotonic() - started, 3),
        task_id=task_id,
    )


def _read(node: Node, request: SchemaRequest, task_id: str) -> _Read:
    with connect(node, application=f"trueup schema-diff {task_id[:8]}") as connection:
        try:
            connection.execute("SET default_transaction_isolation = 'repeatable read'")
            server = catalog.read_server(connection)
            schemas = catalog.schema_names(connection)
            items = read_schema(connection, schemas=request.schemas or None, tables=request.tables, tuning=True)
            return _Read(server, schemas, items)
        except Exception as error:
            raise error_from_server(error, node) from None


def _check_names(request: SchemaRequest, read: Sequence[_Read]) -> None:
    """Raise ConfigError for a name that no node has: nothing would be compared, and the result would be MATCH."""
    tables = {item.table for node in read for item in node.items.values() if item.table}
    for pattern in request.tables.take if request.tables else ():
        if not any(pattern.matches(*table) for table in tables):
            cure = "check the name; write schema.table, with * as a wildcard"
            raise ConfigError(f"--tables: no table or view of any node matches {pattern.text}", cure=cure)
    existing = {name for node in read for kind, _, name in node.items if kind == "schema"}
    for name in request.schemas:
        if display_part(name) not in existing:
            known = {schema for node in read for schema in node.schemas}
            reason = "it belongs to trueup and is not compared" if name in known else "it does not exist on any node"
            raise ConfigError(f"--schema {name}: {reason}", cure=suggest(name, known - {name}))
