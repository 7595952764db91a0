"""Sample data for the example configuration: two days of visits, of their side logs, and of the fast supplier's rows.

Day 1 has new visits, and side rows of some of them. Day 2 has newer versions of a tenth of the visits, deletions, and
side rows that arrive late.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

from trueup.config.wording import problem

VISITS = 1000
DAYS = (1, 2)
Rows = Sequence[Mapping[str, Any]]


def write_sample(folder: Path) -> None:
    """Write `day1` and `day2` into the folder, as Parquet; other files in it are kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The states of older visits would expire.
    today = datetime.now(timezone.utc).date()
    try:
        for day in DAYS:
            shutil.rmtree(folder / f"day{day}", ignore_errors=True)
            for name, rows in _sources(day, today).items():
                place = folder / f"day{day}" / name
                place.mkdir(parents=True)
                schema = pa.schema(_columns(name))
                pq.write_table(pa.Table.from_pylist(list(rows), schema), place / "rows.parquet")
    except OSError as error:
        cure = "Choose another path, or check the permissions of the folder."
        raise problem(str(folder), f"cannot be written ({error.strerror})", cure) from None


def _columns(source: str) -> list[tuple[str, Any]]:
    """Return the columns of a source, with their Arrow types."""
    import pyarrow as pa

    moment, visit = pa.timestamp("us", tz="UTC"), [("VisitID", pa.int64()), ("y_VisitVersion", pa.int64())]
    values = [
        ("StartDate", pa.date32()),
        ("Duration", pa.int32()),
        ("UserAgent", pa.string()),
        ("Referer", pa.string()),
    ]
    columns: dict[str, list[tuple[str, Any]]] = {
        "visits": [*visit, ("IsDeleted", pa.bool_()), *values],
        "conversions": [
            *(("visit_id", pa.int64()), ("EventID", pa.string()), ("EventTime", moment)),
            *(("Goals", pa.list_(pa.int32())), ("Score", pa.int32()), ("LastGoal", pa.string())),
        ],
        "money": [
            *(("VisitID", pa.int64()), ("PaymentID", pa.string()), ("PaidAt", moment)),
            ("Revenue", pa.float64()),
        ],
        "fast": [*visit, ("Sign", pa.int8()), ("SlowVersion", pa.int64()), ("Version", pa.int64()), *values],
    }
    return columns[source]


def _sources(day: int, today: date) -> dict[str, Rows]:
    noon = datetime.combine(today - timedelta(days=2 - day), time(12), timezone.utc)
    return {
        "visits": list(_visits(day, today)),
        "conversions": [
            {
                "visit_id": key,
                "EventID": f"{day}-{key}",
                "EventTime": noon + timedelta(seconds=key),
                "Goals": [day, key % 9],
                "Score": key % 5,
                "LastGoal": f"goal {key % 9}",
            }
            for key in range(4, VISITS + 1, 4 if day == 1 else 3)
        ],
        "money": [
            {"VisitID": key, "PaymentID": f"{day}-{key}", "PaidAt": noon, "Revenue": day * 9.5}
            for key in range(6, VISITS + 1, 6 if day == 1 else 5)
        ],
        "fast": list(_fast(day, today)),
    }


def _visits(day: int, today: date) -> Iterator[dict[str, Any]]:
    """Yield all visits on day 1; on day 2 the next version of every tenth, or the deletion of every thirtieth."""
    for key in range(1, VISITS + 1) if day == 1 else range(10, VISITS + 1, 10):
        is_deleted = day == 2 and key % 30 == 0
        # A deletion repeats the last version.
        yield _visit(key, 1 if is_deleted else day, today) | {"IsDeleted": is_deleted}


def _fast(day: int, today: date) -> Iterator[dict[str, Any]]:
    """Yield the signed rows of the fast supplier: a new version is a row +1, after a row -1 of the version before."""
    for visit in _visits(day, today):
        if not visit.pop("IsDeleted"):
            if day == 2:
                yield _signed(_visit(visit["VisitID"], 1, today), -1)
            yield _signed(visit, 1)


def _signed(visit: dict[str, Any], sign: int) -> dict[str, Any]:
    return {**visit, "Sign": sign, "SlowVersion": 0, "Version": visit["y_VisitVersion"]}


def _visit(key: int, fast: int, today: date) -> dict[str, Any]:
    return {
        "VisitID": key,
        "y_VisitVersion": fast,
        "StartDate": today - timedelta(days=1),
        "Duration": 30 * fast + key % 60,
        "UserAgent": f"Browser {key % 7}.{fast}",
        "Referer": f"https://example.com/{key % 3}",
    }
