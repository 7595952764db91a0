"""The demo of diff: three nodes with the same table, some differences, one diff."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trueup.api.diff import diff
from trueup.config.files import write_whole
from trueup.config.load import load
from trueup.db.statements import load as load_statements
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.report.model import DiffResult
from trueup.task.together import together
from trueup.testing.postgres import Server

NODES = ("n1", "n2", "n3")
TABLE = "public.customers"


def run(*, rows: int, keep: bool, folder: Path, engine: str, progress: Progress) -> DiffResult:
    """Start the nodes, load the table, change some rows, and compare. With `keep`, nodes and a trueup.toml remain."""
    if keep and _homes(folder):
        raise ConfigError(
            f"{folder} contains nodes of an earlier demo",
            cure=f"remove them with `trueup demo --stop --folder {folder}`, or name another --folder",
        )
    with _nodes(folder if keep else None, keep=keep) as servers:
        progress.stage("starting nodes", len(NODES))
        progress.advance(len(NODES))
        progress.stage("loading rows", len(NODES))
        together(servers, lambda server: _fill(server, rows, progress))
        config = _write_config(folder, servers) if keep else None
        return diff(
            TABLE,
            config=str(config) if config else None,
            nodes=list(NODES) if config else {server.name: server.uri() for server in servers},
            engine=engine,
            concurrency_factor=1.0,
            progress=progress,
        )


def stop(folder: Path) -> int:
    """Stop nodes of an earlier demo, remove their data, and return their number."""
    homes = _homes(folder)
    for home in homes:
        Server.attach(home).remove()
    return len(homes)


def _homes(folder: Path) -> list[Path]:
    return [folder / name for name in NODES if (folder / name / "server.json").exists()]


@contextmanager
def _nodes(folder: Path | None, *, keep: bool) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = []
        for name in NODES:
            home = folder / name if folder else None
            servers.append(stack.enter_context(Server.start(home, name=name, keep=keep)))
        yield servers


def _fill(server: Server, rows: int, progress: Progress) -> None:
    """Load the same rows on every node, then change some rows of this node."""
    statements = load_statements("trueup.demo", "demo.sql")
    database = server.database("postgres")
    database.execute(statements["create"])
    database.execute(statements["load"], {"rows": rows})
    database.execute(statements["finish"])
    database.execute(statements[f"drift_{server.name}"].replace("%(rows)s", str(int(rows))))
    progress.advance(rows=rows)


def _write_config(folder: Path, servers: list[Server]) -> Path:
    path = folder / "trueup.toml"
    lines = [f"# The nodes of the demo. Stop them with: trueup demo --stop --folder {folder}", "[nodes]"]
    lines += [f'{server.name} = "{server.uri()}"' for server in servers]
    lines += ["", "[clusters]", "demo = [" + ", ".join(f'"{server.name}"' for server in servers) + "]", ""]
    write_whole(path, "\n".join(lines).encode())
    load(str(path))
    return path
