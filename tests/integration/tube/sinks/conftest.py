"""Fixtures of the sinks: each with a real server or folder, its documents, and a function that stops it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from support.fixtures import Databases
from support.sinks import Gate, Rig, Stored
from trueup.sinks.base import Sink, SourceTable
from trueup.testing.postgres import free_port


def _named(source: SourceTable, rows: list[dict[str, Any]]) -> Stored:
    return {
        (
            *((str(row["trueup_shard"]),) if source.routed else ()),
            *(str(row[name]) for name in source.key),
        ): row
        for row in rows
    }


@pytest.fixture
def postgres(databases: Databases) -> Iterator[Rig]:
    database = databases(1)[0]
    gate = Gate(database.server.port)

    def stored(source: SourceTable) -> Stored:
        table = "copy." + source.table.partition(".")[2]
        rows = database.execute(f"SELECT to_jsonb(t)::text FROM {table} t")
        return _named(source, [json.loads(row[0], parse_float=str) for row in rows])

    address = database.uri.replace(f":{database.server.port}/", f":{gate.port}/")
    database.execute(
        "CREATE SCHEMA copy; CREATE TABLE copy.things (id bigint PRIMARY KEY, name text, price numeric,"
        " seen timestamptz, n text CHECK (n <> 'bad'), extra text DEFAULT 'mine')"
    )
    yield Rig(address, stored, gate.close, gate.open, {"n": "bad"}, {"table": "copy.{table}"})
    gate.close()


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server (as root: apt-get install redis-server)")
    port = free_port()
    # A password that the address must quote.
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "ge heim/1"]
    process = subprocess.Popen(
        [program, *options, "--dir", str(tmp_path_factory.mktemp("redis"))], stdout=subprocess.DEVNULL
    )
    end = time.monotonic() + 60
    while True:
        try:
            Redis.from_url(f"redis://:ge%20heim%2F1@127.0.0.1:{port}").ping()
            break
        except RedisError:
            assert time.monotonic() < end
            time.sleep(0.02)
    yield port
    process.kill()
    process.wait()


@pytest.fixture
def redis(redis_port: int) -> Iterator[Rig]:
    gate = Gate(redis_port)
    client: Any = Redis.from_url(f"redis://:ge%20heim%2F1@127.0.0.1:{redis_port}")
    client.flushall()

    def stored(source: SourceTable) -> Stored:
        names = list(client.scan_iter())
        found: Stored = {}
        for name in (each.decode() for each in names if each.startswith(b"doc:" + source.table.encode() + b":")):
            _, _, shard, key = name.split(":", 3)
            parts = [key] if len(source.key) == 1 else json.loads(key)
            body = client.get(name).decode()
            row = json.loads(body, parse_float=str)
            document = (shard, *parts) if source.routed else tuple(parts)
            found[document] = {**row, "_text": body}
        return found

    options = {"mode": "set", "key": "doc:{table}:{shard}:{key}", "largest": "3000"}
    address = f"redis://:ge%20heim%2F1@127.0.0.1:{gate.port}/0"
    yield Rig(address, stored, gate.close, gate.open, {"n": "x" * 3000}, options)
    client.close()
    gate.close()


@pytest.fixture
def search() -> Iterator[Rig]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("search_server.py")), "0", "", "4000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    gate = Gate(port)

    def stored(source: SourceTable) -> Stored:
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{port}/_all") as answer:
            found = json.load(answer)["shop"]
        rows = [{**json.loads(row["_text"], parse_float=str), "_text": row["_text"]} for row in found.values()]
        return _named(source, [row for row in rows if row["trueup_table"] == source.table])

    options = {"id": "{table}:{shard}:{key}", "bytes": "1500"}
    yield Rig(f"http://127.0.0.1:{gate.port}/shop", stored, gate.close, gate.open, {"n": "bad"}, options)
    process.kill()
    process.communicate()
    gate.close()


def _moved(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that replace a folder by a file, and restore it."""
    away = folder.with_name("away")

    def down() -> None:
        folder.rename(away)
        folder.touch()

    def up() -> None:
        folder.unlink()
        away.rename(folder)

    return down, up


@pytest.fixture
def parquet(tmp_path: Path) -> Rig:
    from trueup.sinks.parquet import current_state, file_name

    def stored(source: SourceTable) -> Stored:
        return _named(source, current_state(tmp_path / "lake" / file_name(source.table)).to_pylist())

    down, up = _moved(tmp_path / "lake")
    return Rig(f"parquet:{tmp_path / 'lake'}", stored, down, up, {"seen": "infinity"}, {"types": "native"})


@pytest.fixture
def delta(tmp_path: Path) -> Rig:
    from deltalake import DeltaTable

    from trueup.sinks.parquet import file_name

    def stored(source: SourceTable) -> Stored:
        found = DeltaTable(str(tmp_path / "lake" / file_name(source.table))).to_pyarrow_table()
        assert found.num_rows == len(_named(source, found.to_pylist()))
        return _named(source, found.to_pylist())

    down, up = _moved(tmp_path / "lake")
    options = {"types": "native", "buckets": "3"}
    return Rig(f"delta:{tmp_path / 'lake'}", stored, down, up, {"seen": "infinity"}, options)


@pytest.fixture
def chdb(tmp_path: Path) -> Rig:
    """No other process can open the folder while it is in use: the session of the sink is queried."""
    rig = Rig(f"chdb:{tmp_path / 'house'}", lambda source: {}, lambda: None, lambda: None, {"seen": "infinity"})
    rig.options = {"types": "native"}
    opened: list[Any] = []
    plain = rig.open

    def kept(**more: str) -> Sink:
        opened.append(plain(**more))
        return opened[-1]  # type: ignore[no-any-return]

    def stored(source: SourceTable) -> Stored:
        name = source.table.partition(".")[2].strip('"')
        sink = opened[-1]
        columns = [each for each, _ in source.columns]
        rows = sink._rows(f"SELECT {', '.join(columns)}, trueup_shard FROM `{name}` FINAL")
        texts = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in rows]
        return _named(source, [dict(zip([*columns, "trueup_shard"], row, strict=True)) for row in texts])

    other: list[Any] = []

    def down() -> None:
        from trueup.db.clickhouse import Embedded

        # A process has one folder open at a time.
        opened[-1].close()
        other.append(Embedded(tmp_path / "other"))

    rig.stored, rig.down, rig.up, rig.open = stored, down, lambda: other.pop().close(), kept  # type: ignore[method-assign]
    return rig


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Rig:
    """The rig that a test selects."""
    found: Rig = request.getfixturevalue(request.param)
    return found
