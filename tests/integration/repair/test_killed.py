"""A repair that is killed leaves each node unchanged or completely written, and can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

import trueup
from support.repair import NodesWith

ROWS = 100_000
# A session of the repair with uncommitted writes.
WRITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'trueup repair%%' AND backend_xid IS NOT NULL
   AND query LIKE %s
"""


# The repair of these keys, in a process that can be killed.
PROGRAM = """
import sys, trueup
from dataclasses import replace
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.verbs.repair.request import RepairRequest, table_of_keys
from trueup.verbs.repair.tasks import repair_table
config = trueup.load(nodes={"n1": sys.argv[1], "n2": sys.argv[2]})
keys = [(str(number),) for number in range(1, int(sys.argv[3]) + 1)]
settings, spark = replace(config.diff, recheck=0), replace(config.spark, engine="local")
table = TableRequest("items", tuple(config.nodes.values()), settings=settings, spark=spark)
request = RepairRequest(source_of_truth="n1", execute=True, undo=sys.argv[4])
with TaskStore() as store:
    result = repair_table(request, table_of_keys(table, "a test", keys), store=store)
print(result.verdict, result.written["n2"])
"""


def killed(arguments: list[str], query: str) -> None:
    """Run the program, and kill it when its transaction runs such a query."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.DEVNULL)
    try:
        with psycopg.connect(arguments[1], autocommit=True) as session:
            end = time.monotonic() + 120
            while not session.execute(WRITING, (query,)).fetchall()[0][0]:
                assert process.poll() is None, "the run ended before it could be killed"
                assert time.monotonic() < end
                time.sleep(0.002)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_a_repair_of_100_000_rows_that_is_killed(nodes_with: NodesWith) -> None:
    nodes = nodes_with(
        "CREATE TABLE items (id int PRIMARY KEY, v int)",
        f"INSERT INTO items SELECT i, i FROM generate_series(1, {ROWS - 10}) i; ANALYZE items",
        f"INSERT INTO items SELECT i, -i FROM generate_series({ROWS // 2}, {ROWS}) i; ANALYZE items",
    )
    count = "SELECT count(*), sum(v) FROM items"
    before = nodes[2].execute(count)
    arguments = [*nodes.addresses.values(), str(ROWS)]
    # The deletes are done, the inserts are running.
    killed([*arguments, "killed.gz"], "COPY %FROM STDIN%")
    assert nodes[2].execute(count) == before
    # The old rows are unchanged, nothing was written, and no temporary file with rows is left.
    undone = nodes.undo("killed.gz")
    assert (undone.keys, undone.agree, undone.exit_code) == (ROWS, ROWS, 0)
    assert sorted(path.name for path in Path().glob(".*")) == []
    again = subprocess.run([sys.executable, "-c", PROGRAM, *arguments, "again.gz"], capture_output=True, text=True)
    assert again.stdout == f"REPAIRED {{'insert': {ROWS // 2 - 1}, 'update': {ROWS // 2 - 9}, 'delete': 10}}\n"
    assert nodes[2].execute(count) == nodes[1].execute(count)
    with trueup.TaskStore() as store:
        assert [task.task_status for task in store.list(task_type="TABLE_REPAIR")] == ["COMPLETED", "FAILED"]
