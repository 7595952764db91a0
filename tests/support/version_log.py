"""Two runs of a version log in the working folder, and their result: the same on any master and in any process."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.chunks import write_chunk
from trueup.config.settings import SparkSettings
from trueup.engine.bulk_session import spark_session
from trueup.verbs.difflog import outputs
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.model import Target
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import state_rows

CONFIG = Path(__file__).parents[2] / "src" / "trueup" / "demo" / "difflog.toml"
_DIGEST = "1dd6735187c9e088a6eecef8ba78a900f34f37eabbb6ba89718a19a1d1bec39f"
_VISIT = "VisitID long, y_VisitVersion long, UserAgent string, Duration int, IsDeleted boolean"
_MONEY = "VisitID long, y_VisitVersion long, PaymentID long, Revenue double"
# The result of `two_runs`: the signed rows of the second run, the number of states, and a digest of log and states.
EXPECTED = {"rows": {"diff_log_1_visit": 1600, "diff_log_2_money": 2000}, "states": 2000, "digest": _DIGEST}


def two_runs(settings: dict[str, Any]) -> dict[str, Any]:
    """Run 2,000 visits, then new versions of 400 of them and 3,000 rows of a side log; return what they wrote."""
    Path("difflog.toml").write_bytes(CONFIG.read_bytes())
    log = replace(load_difflog("difflog.toml"), target=Target())
    for name, fast, keys in (("a", 1, range(2000)), ("b", 2, range(500, 900))):
        visits = [(key, fast, f"b{key}", key % 9, False) for key in keys]
        write_chunk(Path("chunks") / name / "visit", visits, _VISIT)
    money = [(each % 1000, 2 if 500 <= each % 1000 < 900 else 1, each, 0.5) for each in range(3000)]
    write_chunk(Path("chunks/b/money"), money, _MONEY)
    with spark_session(SparkSettings(**settings)) as session:
        _, rows = (run(session, log, names=[name]).rows for name in ("a", "b"))
        wide = session.read.parquet(str(Path.cwd() / "runs/*/visit_log_wide")).collect()
        states = state_rows(session, log)
        assert states is not None
        found = states.collect()
    texts = sorted(json.dumps(row.asDict(recursive=True), sort_keys=True) for row in (*wide, *found))
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return {"rows": rows, "states": len(found), "digest": digest}


if __name__ == "__main__":
    # However few keys there are, the executors write the outputs.
    outputs.FEW = 0
    print(json.dumps(two_runs(json.loads(sys.argv[1]))))  # noqa: T201
