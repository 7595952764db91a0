"""`trueup tube prove` of sinks with tables: PostgreSQL, ClickHouse, Delta, Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures import Databases, Spark
from support.proof import prove_drift
from support.tube import TubeDatabase


@pytest.fixture
def tube_db(databases: Databases) -> Iterator[TubeDatabase]:
    tube_db = TubeDatabase(databases(1)[0])
    tube_db.install()
    tube_db.tube.ensure()
    yield tube_db
    tube_db.close()


@pytest.mark.parametrize("kind", ["postgresql", "chdb", "delta", "parquet"])
def test_tables(tube_db: TubeDatabase, databases: Databases, kind: str, tmp_path: Path, spark: Spark) -> None:
    address, options = f"{kind}:{tmp_path}/lake", {"types": "native"}
    if kind == "postgresql":
        address, options = databases(1)[0].uri, {"table": "copy.{table}"}
    if kind == "delta":
        tube_db.run("CREATE TABLE early (id int PRIMARY KEY)")
        tube_db.tube.attach("early", shard=0)
        proof = tube_db.tube.prove(address, sink_options=options)
        assert (proof.verdict, "there is no folder" in proof.as_text()) == ("INCOMPLETE", True)
        tube_db.tube.detach("early")
    prove_drift(tube_db, address, options, tmp_path, every_step=False)
