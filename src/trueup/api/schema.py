"""`trueup.schema_diff`: compare definitions across nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.api.parameters import configuration
from trueup.config.model import Config
from trueup.db.patterns import parse_patterns
from trueup.errors import ConfigError
from trueup.store import TaskStore
from trueup.verbs.schema.model import SchemaResult
from trueup.verbs.schema.run import SchemaRequest, run


def schema_diff(
    *,
    nodes: Mapping[str, str] | Sequence[str] | None = None,
    cluster: str | None = None,
    config: Config | str | None = None,
    schemas: Sequence[str] = (),
    tables: Sequence[str] = (),
    task_db: str | None = None,
) -> SchemaResult:
    """Compare definitions across nodes, and return the differences. Writes nothing on any node.

    Compares all objects, those of `schemas`, or those of `tables` (patterns such as `public.order*`). Nodes as for
    `diff`. Raises ConfigError for a name that no node has, and NodeError if a node cannot be read.
    """
    if schemas and tables:
        raise ConfigError("--schema and --tables cannot be used together", cure="use one of them")
    config = configuration(config, nodes if isinstance(nodes, Mapping) else None)
    request = SchemaRequest(
        nodes=config.select(cluster, list(nodes) if nodes else None),
        cluster=cluster or "",
        schemas=tuple(schemas),
        tables=parse_patterns(tables=tables) if tables else None,
    )
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        return run(request, store=store)
