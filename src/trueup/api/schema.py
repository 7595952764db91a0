"""The comparison of schemas as a Python call: the same options as on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.config.load import load
from trueup.config.model import Config
from trueup.db.patterns import parse_patterns
from trueup.errors import ConfigError
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
    """Compare the definitions of all objects across nodes: of these schemas, of these tables (patterns), or of all.

    Nodes as for `diff`. Nothing is written on any node.
    """
    from trueup.store import TaskStore

    if schemas and tables:
        raise ConfigError(
            "--schema and --tables cannot be given together", cure="a schema holds more than tables: give one"
        )
    if not isinstance(config, Config):
        config = load(config, nodes=nodes if isinstance(nodes, Mapping) else None)
    request = SchemaRequest(
        nodes=config.select(cluster, list(nodes) if nodes else None),
        cluster=cluster or "",
        schemas=tuple(schemas),
        tables=parse_patterns(tables=tables) if tables else None,
    )
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        return run(request, store=store)
