"""A past report as the keys that it names: what a rerun looks at again, and what a repair mends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.db.names import display_name
from trueup.errors import CheckFailed, ConfigError
from trueup.report.json_file import Keyed, showing, stream_keys
from trueup.rows.keys import KeyValues
from trueup.rows.spec import TableSpec
from trueup.verbs.diff.request import DiffRequest

if TYPE_CHECKING:
    from trueup.config.model import Config
    from trueup.config.settings import DiffSettings, SparkSettings
    from trueup.store import TaskStore

# What a node had for a key: the hash of its row, None for no row, UNKNOWN where the report does not say.
UNKNOWN = ""
Hash = str | None
WITH_REPORT = ("TABLE_DIFF", "TABLE_RERUN")


@dataclass(frozen=True)
class Past:
    """The keys of a report, with what it says of each: every node's hash, and which pairs differed (bits)."""

    path: str
    summary: Mapping[str, Any]
    proof: Mapping[str, Any]
    incomplete: tuple[str, ...]
    keys: tuple[KeyValues, ...]
    hashes: tuple[tuple[Hash, ...], ...]
    pairs: tuple[int, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in the order of the report, which is the order of `hashes`."""
        return tuple(self.summary["nodes"])

    @property
    def is_keyless(self) -> bool:
        """Whether its keys are hashes of rows."""
        return not self.summary["primary_key"]

    @property
    def table(self) -> str:
        """The table's name, as one would type it."""
        return display_name(self.summary["schema"], self.summary["table"])

    def rest(self) -> list[str]:
        """What this report did not look at: nothing can be said of it later either."""
        remarks = []
        if self.incomplete or self.summary["verdict"] == "INCOMPLETE":
            remarks.append("the earlier report is INCOMPLETE: only the keys it lists are looked at, and not the rest")
        elif self.summary.get("diff_row_limit_reached"):
            remarks.append("the earlier diff stopped at its limit of differences: there may be more than it lists")
        return remarks


def find_report(text: str, store: TaskStore) -> Path:
    """The path of a report: itself, or that of a task by its id or the start of it."""
    if text.endswith(".json") or "/" in text:
        return Path(text)
    task = store.get(text)
    if task.task_type in WITH_REPORT and task.diff_file_path:
        return Path(task.diff_file_path)
    raise ConfigError(
        f"task {task.task_id[:8]} has no report of rows: it is a {task.task_type}, {task.task_status}",
        cure="name a diff or a rerun (see trueup tasks), or the path of its JSON report",
    )


def read_past(path: Path) -> Past:
    """Read a report; only its keys and hashes are kept."""
    head, differences = stream_keys(path)
    with showing(path):
        summary = head["summary"]
        nodes = tuple(summary["nodes"])
        bits = {"/".join(pair): 1 << at for at, pair in enumerate(combinations(nodes, 2))}
        keys, hashes, pairs = _by_key(differences, bits)
        return Past(
            str(path.absolute()),
            summary,
            head["proof"],
            tuple(head["incomplete"]),
            tuple(keys),
            tuple(hashes),
            tuple(pairs),
        )


def _by_key(
    differences: Iterable[Keyed], bits: Mapping[str, int]
) -> tuple[list[KeyValues], list[tuple[Hash, ...]], list[int]]:
    """Every key once, though several pairs may differ on it."""
    places: dict[KeyValues, int] = {}
    hashes: list[tuple[Hash, ...]] = []
    pairs: list[int] = []
    for pair, key, said in differences:
        at = places.setdefault(key, len(pairs))
        if at == len(pairs):
            hashes.append(said)
            pairs.append(bits[pair])
        else:
            pairs[at] |= bits[pair]
    return list(places), hashes, pairs


def request_of(
    past: Past, config: Config, settings: DiffSettings, spark: SparkSettings, *, filtered: bool = True
) -> DiffRequest:
    """Ask for the same table, nodes and columns again; addresses are those of the configuration as it is now."""
    summary = past.summary
    numeric = {"numeric": summary["numeric"], "long_value": past.proof["long_value"], "digest": past.proof["digest"]}
    return DiffRequest(
        table=past.table,
        nodes=config.select(None, list(past.nodes)),
        cluster=summary["cluster"],
        settings=replace(settings, max_diff_rows=max(len(past.keys), 1) + 1, **numeric),
        spark=spark,
        filter=summary["table_filter"] if filtered else "",
        columns=tuple(summary["columns"]),
        key=tuple(summary["primary_key"]),
        rerun_of=past.path,
    )


def same_hash(past: Past, spec: TableSpec) -> TableSpec:
    """The table with the hash of the report, so that its hashes mean the same now."""
    columns = {column.name: column for column in spec.columns}
    if set(columns) != set(past.summary["columns"]) or spec.is_keyless != past.is_keyless:
        raise CheckFailed(
            ["the key or the columns of the table are not those of the report"],
            cure="run the diff again",
            table=past.table,
        )
    ordered = tuple(columns[name] for name in past.summary["columns"])
    return replace(spec, columns=ordered, seed=int(past.proof["hash_seed"]))
