"""The comparison of schemas from end to end: connect, read each node's catalog, compare, say."""

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
    """The nodes, and of what: these schemas, these tables, or everything."""

    nodes: tuple[Node, ...]
    cluster: str = ""
    schemas: tuple[str, ...] = ()
    tables: Patterns | None = None


@dataclass(frozen=True)
class _Read:
    """What was read of one node."""

    server: catalog.Server
    schemas: tuple[str, ...]
    items: Mapping[Name, Item]


def run(request: SchemaRequest, *, store: TaskStore) -> SchemaResult:
    """Compare the schemas of all nodes of the request; the task store keeps the request and the answer."""
    context = {
        "nodes": ",".join(node.name for node in request.nodes),
        "schemas": list(request.schemas),
        "tables": str(request.tables or ""),
    }
    what = str(request.tables or "") or ", ".join(request.schemas) or "all schemas"
    with open_task(
        store,
        "SCHEMA_DIFF",
        cluster=request.cluster,
        table=what,
        context=context,
        on_interrupt="nothing was changed on any node; run the command again",
    ) as task:
        result = _compare(request, task.task_id)
        failed = result.verdict == "INCOMPLETE"
        task.finish(result.summary(), failed=failed, error="; ".join(result.incomplete))
        return result


def _compare(request: SchemaRequest, task_id: str) -> SchemaResult:
    begun = time.monotonic()
    with ThreadPoolExecutor(len(request.nodes), thread_name_prefix="trueup-node") as threads:
        found = threads.map(lambda node: _read(node, request, task_id), request.nodes)
        read = dict(zip((node.name for node in request.nodes), found, strict=True))
    _check_names(request, list(read.values()))
    differences = compare_schemas({name: each.items for name, each in read.items()})
    closed = any(each.how == "unreadable" for each in differences)
    verdict: Verdict = "INCOMPLETE" if closed else "DIFFER" if differences else "MATCH"
    return SchemaResult(
        verdict=verdict,
        nodes=tuple(read),
        objects={name: len(each.items) for name, each in read.items()},
        differences=tuple(differences),
        remarks=tuple(catalog.same_databases({name: each.server for name, each in read.items()})),
        seconds=round(time.monotonic() - begun, 3),
        task_id=task_id,
    )


def _read(node: Node, request: SchemaRequest, task_id: str) -> _Read:
    with connect(node, application=f"trueup schema-diff {task_id[:8]}") as connection:
        try:
            connection.execute("SET default_transaction_isolation = 'repeatable read'")
            server = catalog.read_server(connection)
            schemas = catalog.schema_names(connection)
            items = read_schema(connection, schemas=request.schemas or None, tables=request.tables)
            return _Read(server, schemas, items)
        except Exception as error:
            raise error_from_server(error, node) from None


def _check_names(request: SchemaRequest, read: Sequence[_Read]) -> None:
    """A name that fits nothing anywhere is a slip: nothing would be compared, and all would seem well."""
    seen = {item.table for each in read for item in each.items.values() if item.table}
    for pattern in request.tables.take if request.tables else ():
        if not any(pattern.matches(*table) for table in seen):
            cure = "check the name; write schema.table, with * for any"
            raise ConfigError(f"--tables: no node has a table or view that fits {pattern.text}", cure=cure)
    there = {name for each in read for kind, _, name in each.items if kind == "schema"}
    for name in request.schemas:
        if display_part(name) not in there:
            known = {schema for each in read for schema in each.schemas}
            whose = "it is trueup's own" if name in known else "no node has it"
            raise ConfigError(f"--schema {name}: {whose}", cure=suggest(name, known - {name}))
