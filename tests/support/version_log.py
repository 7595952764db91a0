"""Two runs of a version log in the working folder, and their result: the same on any master and in any process."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from trueup.config.settings import SparkSettings
from trueup.engine.bulk_session import spark_session
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.model import Target
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import state_rows

CONFIG = Path(__file__).parents[2] / "src" / "trueup" / "demo" / "difflog.toml"
_DIGEST = "1dd6735187c9e088a6eecef8ba78a900f34f37eabbb6ba89718a19a1d1bec39f"
# The result of `two_runs`: the signed rows of the second run, the number of states, and a digest of log and states.
EXPECTED = {"rows": {"diff_log_1_visit": 1600, "diff_log_2_money": 2000}, "states": 2000, "digest": _DIGEST}


def two_runs(settings: dict[str, Any]) -> dict[str, Any]:
    """Run 2,000 visits, then new versions of 400 of them and 3,000 rows of a side log; return what they wrote."""
    Path("difflog.toml").write_bytes(CONFIG.read_bytes())
    log = replace(load_difflog("difflog.toml"), target=Target())
    visits = ("id AS VisitID", "{fast}L AS y_VisitVersion", "concat('b', id) AS UserAgent",
              "CAST(id % 9 AS INT) AS Duration", "false AS IsDeleted")  # fmt: skip
    with spark_session(SparkSettings(**settings)) as session:

        def put(name: str, frame: Any, *columns: str) -> None:
            # The JVM of a server has another idea of the current folder.
            frame.selectExpr(*columns).write.parquet(str(Path(name).absolute()))

        put("chunks/a/visit", session.range(2000), *[column.format(fast=1) for column in visits])
        put("chunks/b/visit", session.range(500, 900), *[column.format(fast=2) for column in visits])
        put("chunks/b/money", session.range(3000), "id % 1000 AS VisitID", "IF(id % 1000 BETWEEN 500 AND 899, 2L, 1L)"
            " AS y_VisitVersion", "id AS PaymentID", "0.5D AS Revenue")  # fmt: skip
        _, rows = (run(session, log, names=[name]).rows for name in ("a", "b"))
        wide = session.read.parquet(str(Path.cwd() / "runs/*/visit_log_wide")).collect()
        states = state_rows(session, log)
        assert states is not None
        found = states.collect()
    texts = sorted(json.dumps(row.asDict(recursive=True), sort_keys=True) for row in (*wide, *found))
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return {"rows": rows, "states": len(found), "digest": digest}


if __name__ == "__main__":
    print(json.dumps(two_runs(json.loads(sys.argv[1]))))  # noqa: T201
