"""Who knows the seed of a row hash can make a row that fits it: no seed that was seen is used to judge that row.

Both servers log every statement with its parameters, which is more than pg_stat_activity and pg_stat_statements show.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.collision import colliding
from support.validate import PG_BIN, Copy
from trueup.engine.progress import Silent
from trueup.report.model import DiffResult
from trueup.testing.postgres import Server
from trueup.verbs.validate.to_certificate import tables_of_validation

DEBIAN = Path("/usr/lib/postgresql/15/bin")
LOGGED = {"log_statement": "all", "log_line_prefix": "<%d> "}
# With a NULL, which is hashed as nothing.
TABLE = "CREATE TABLE {} (id int {}, v bytea, w text)"
ROWS = "INSERT INTO {} SELECT i, convert_to('value ' || i, 'UTF8') FROM generate_series(1, 300) i"
_NUMBER = re.compile(r"(?<!\d)\d{12,20}(?!\d)")


class _AfterTheFirstStage(Silent):
    """Calls a function when a stage begins, but for the first one."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act, self._stages = act, 0

    def stage(self, name: str, total: int) -> None:
        """Call the function."""
        self._stages += 1
        if self._stages > 1:
            self._act()


@pytest.fixture(scope="module")
def talkative() -> Iterator[tuple[Server, Server]]:
    """A server of version 15 with pg_stat_statements, and one of the newest version; both log all statements."""
    settings = {**LOGGED, "shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "on"}
    with (
        Server.start(name="old", bin_dir=DEBIAN, settings=settings) as old,
        Server.start(name="new", bin_dir=PG_BIN, settings=LOGGED) as new,
    ):
        old.database("postgres").execute("CREATE EXTENSION pg_stat_statements")
        yield old, new


@pytest.fixture
def watched(talkative: tuple[Server, Server]) -> Iterator[Copy]:
    """A source and a target on these servers."""
    name = f"seeds_{os.urandom(4).hex()}"
    made = Copy(*(server.create_database(f"{name}_{server.name}") for server in talkative))
    yield made
    made.remove()


def _entries(copy: Copy) -> list[tuple[str, str]]:
    """Return the texts of the statements in both logs, each with its parameters."""
    found = []
    for database in (copy.up, copy.down):
        text = database.server.log.read_text(errors="replace")
        for entry in text.split(f"<{database.name}> LOG:  ")[1:]:
            statement, _, parameters = entry.partition(f"\n<{database.name}> DETAIL:  ")
            found.append((statement, parameters.partition("\n<")[0]))
    return found


def _seeds(copy: Copy) -> list[int]:
    """Return the seeds of all hashes of rows that were computed, as a reader of the logs finds them."""
    found: dict[int, None] = {}
    for statement, parameters in _entries(copy):
        # The probe hashes a row of constants, with a seed of its own.
        if re.search(r"hash_record_extended|bit\(64\)", statement) and not statement.rstrip().endswith(" probe"):
            numbers = _NUMBER.findall(parameters) or _NUMBER.findall(statement)
            assert numbers, statement
            found |= dict.fromkeys(map(int, numbers))
    return list(found)


def _assert_never_in_a_statement(copy: Copy, seeds: list[int]) -> None:
    """The text of a statement is in pg_stat_activity, too, while it runs and after it."""
    # The meta database gets the seed of a block when it is not used any more.
    texts = "\n".join(statement for statement, _ in _entries(copy) if "certificate_block" not in statement)
    query = "SELECT string_agg(query, E'\\n') FROM pg_stat_statements"
    texts += copy.up.server.database("postgres").execute(query)[0][0]
    assert not {str(seed) for seed in seeds} & {*_NUMBER.findall(texts)}


def _known(copy: Copy) -> list[int]:
    """Return every large number of the certificate and of the meta database, and all seeds in the logs."""
    document = json.dumps(tables_of_validation(copy.validation.config, "v", [], meta_node="n2"))
    stored = [
        copy.down.execute(f"SELECT json_agg(t)::text FROM trueup.{table} t")[0][0]
        for table in ("validation", "validation_table", "certificate", "certificate_block")
    ]
    numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(" ".join([document, *stored])))
    return list(dict.fromkeys([*numbers, *reversed(_seeds(copy))]))


def test_a_row_that_fits_a_seed_that_was_seen_is_found(watched: Copy) -> None:
    copy = watched
    copy.both(TABLE.format("t", "PRIMARY KEY"))
    copy.up.execute(ROWS.format("t"))
    copy.replicate()
    copy.start(both_sides=True, scrub_share=0.9, scrub_rows=100, scrub_period=0.0)
    copy.until(lambda: copy.validation.prove(timeout=30).verdict == "MATCH")
    # Changes are judged and blocks are hashed again: seeds of rounds and passes before and after it.
    copy.up.execute("UPDATE t SET w = 'x' WHERE id < 10; DELETE FROM t WHERE id = 300")
    copy.until(lambda: copy.status().tables[0].scrub_passes > 2)
    assert copy.validation.prove(timeout=30).verdict == "MATCH"
    known = _known(copy)[:299]
    assert known
    rows = {int(id): bytes(v) for id, v in copy.down.execute("SELECT id, v FROM t")}
    lines = [(colliding(rows[id], seed), id) for id, seed in enumerate(known, 1)]
    copy.down.executemany("UPDATE t SET v = %s WHERE id = %s", lines)
    copy.validation.prove(timeout=30)
    proof = copy.validation.prove(timeout=30)
    assert (proof.verdict, proof.tables[0].errors) == ("DIFFER", len(known))
    _assert_never_in_a_statement(copy, _seeds(copy))


def test_no_seed_of_a_validation_is_used_twice(watched: Copy) -> None:
    """Once per node for the digest of a block, and once more for its rows if they differ."""
    copy = watched
    copy.both(TABLE.format("t", "PRIMARY KEY"))
    copy.up.execute(ROWS.format("t"))
    copy.replicate()
    copy.start(scrub_share=0.9, scrub_rows=100, scrub_period=0.0)
    copy.up.execute("UPDATE t SET w = 'x'")
    assert copy.fence().exit_code == 0
    copy.down.execute("UPDATE t SET w = 'y' WHERE id = 7")
    copy.until(lambda: copy.errors())
    used: dict[str, list[str]] = {}
    for statement, parameters in _entries(copy):
        if "hash_record_extended" in statement and not statement.rstrip().endswith(" probe"):
            for seed in re.findall(r"\$\d+ = '(-?\d+)'", parameters):
                used.setdefault(seed, []).append(statement)
    assert len(used) > 5
    assert max(map(len, used.values())) <= 4


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["key", "keyless"])
@pytest.mark.parametrize("digest", ["native", "portable"])
def test_a_row_that_is_made_to_fit_during_a_diff_differs(watched: Copy, key: str, digest: str) -> None:
    """Between the first look and the re-check, all seeds that were seen are used; then those of the report."""
    copy = watched
    copy.both(TABLE.format("t", key))
    copy.both(ROWS.format("t"))
    copy.down.execute("UPDATE t SET v = 'wrong' WHERE id <= 2")
    right = {int(id): bytes(v) for id, v in copy.up.execute("SELECT id, v FROM t WHERE id <= 2")}
    nodes = {"n1": copy.up.uri, "n2": copy.down.uri}

    def fit(*seeds: int) -> None:
        lines = [(colliding(right[id], seed), id) for id, seed in enumerate(seeds, 1)]
        copy.down.executemany("UPDATE t SET v = %s WHERE id = %s", lines)

    def compare(how: Any) -> DiffResult:
        before = len(_seeds(copy))

        def act() -> None:
            # The seed of the run, and that of the last look.
            seeds = _seeds(copy)[before:]
            fit(seeds[0], seeds[-1])

        progress = _AfterTheFirstStage(act) if digest == "native" else None
        options = {"engine": "local", "recheck": 2, "recheck_wait": 0, "digest": digest}
        result: DiffResult = how("t", nodes=nodes, progress=progress, **options)
        return result

    found = compare(trueup.diff)
    pair = found.pairs["n1/n2"]
    # Rows with a key that change between all looks are not confirmed; rows without one are gone.
    assert found.verdict in ("DIFFER", "INCOMPLETE")
    assert (pair.missing, pair.changed + pair.hot) == ((0, 2) if key else (2, 0))
    if key:
        assert compare(trueup.check).verdict == "DIFFER"
    seed = json.loads(Path(found.report).read_text())["proof"]["hash_seed"]
    if digest == "native":
        fit(seed, seed)
        again = trueup.rerun(found.report, nodes=nodes, engine="local", recheck=1, recheck_wait=0)
        # Rows of a keyless table are found by the hashes of the report; that they were made to fit is noticed.
        assert again.verdict == ("DIFFER" if key else "INCOMPLETE")
    _assert_never_in_a_statement(copy, [seed, *_seeds(copy)])
