"""A past report as a list of keys: those that a rerun compares again or a repair writes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, overload

from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.config.wording import counted
from trueup.db.names import display_name
from trueup.errors import CheckFailed, ConfigError
from trueup.report.json_reader import HOT, Keyed, Report, open_report, showing
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.store import TaskStore

# The hash of a node's row; None: no row; UNKNOWN: the report does not have it; HOT: the difference is not confirmed.
UNKNOWN = ""
Hash = str | None
_LEAST_HASH, _MOST_HASH = -(2**63), 2**63 - 1
WITH_REPORT = ("TABLE_DIFF", "TABLE_RERUN")


class Hashes(Sequence["tuple[Hash, ...]"]):
    """The hashes of all keys of a report, one per node: 9 bytes each, because there may be millions."""

    _WORDS: tuple[Hash, ...] = (None, UNKNOWN, HOT)

    def __init__(self) -> None:
        self._width = 1
        self._numbers = array("q")
        # Per hash: 0 for a number, else the place in _WORDS, from 1.
        self._words = bytearray()

    def append(self, hashes: Sequence[Hash]) -> None:
        """Add the hashes of one key."""
        self._width = len(hashes)
        for value in hashes:
            number, word = 0, 1
            if value is not None:
                number, word = self._packed(value)
            self._numbers.append(number)
            self._words.append(word)

    def set_hot(self, place: int) -> None:
        """Replace the hashes of a key by HOT."""
        for at in range(place * self._width, (place + 1) * self._width):
            self._words[at] = 1 + self._WORDS.index(HOT)

    def __len__(self) -> int:
        return len(self._words) // self._width

    @overload
    def __getitem__(self, place: int) -> tuple[Hash, ...]: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[tuple[Hash, ...], ...]: ...
    def __getitem__(self, place: int | slice) -> tuple[Hash, ...] | tuple[tuple[Hash, ...], ...]:
        if isinstance(place, slice):
            return tuple([self._at(number) for number in range(*place.indices(len(self)))])
        return self._at(range(len(self))[place])

    def _at(self, place: int) -> tuple[Hash, ...]:
        numbers, words = self._numbers, self._words
        return tuple(
            [
                self._WORDS[words[at] - 1] if words[at] else str(numbers[at])
                for at in range(place * self._width, (place + 1) * self._width)
            ]
        )

    def _packed(self, value: str) -> tuple[int, int]:
        try:
            number = int(value)
        except ValueError:
            return 0, 1 + self._WORDS.index(HOT if value == HOT else UNKNOWN)
        is_hash = _LEAST_HASH <= number <= _MOST_HASH
        return (number, 0) if is_hash else (0, 1 + self._WORDS.index(UNKNOWN))


@dataclass(frozen=True)
class Past:
    """The keys of a report, each with the hash per node and the pairs that differed, as bits."""

    path: str
    summary: Mapping[str, Any]
    proof: Mapping[str, Any]
    incomplete: tuple[str, ...]
    keys: tuple[KeyValues, ...]
    hashes: Sequence[tuple[Hash, ...]]
    pairs: tuple[int, ...]
    # Why rows of the table may differ that the report does not list; "" if it lists all.
    unlisted: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in the order of the report and of `hashes`."""
        return tuple(self.summary["nodes"])

    @property
    def is_keyless(self) -> bool:
        """Whether the keys are hashes of rows."""
        return not self.summary["primary_key"]

    @property
    def table(self) -> str:
        """The qualified name of the table."""
        return display_name(self.summary["schema"], self.summary["table"])

    def rest(self) -> list[str]:
        """Return remarks on rows that the report does not list as differences."""
        remarks = []
        accepted = sum(each["differences"] for each in self.summary.get("accepted", ()))
        if accepted:
            remarks.append(f"{counted(accepted, 'accepted difference')} of the earlier report are left alone")
        return remarks


def is_path(text: str) -> bool:
    """Return whether a text is the path of a report, and not the id of a task."""
    return text.endswith(".json") or "/" in text or (Path(text).is_file() and bool(Path(text).suffix))


def find_report(text: str, store: TaskStore) -> Path:
    """Return the path of a report from its path, or from the id of its task or the start of the id."""
    if is_path(text):
        return Path(text)
    task = store.get(text)
    if task.task_type in WITH_REPORT and task.diff_file_path:
        return Path(task.diff_file_path)
    raise ConfigError(
        f"task {task.task_id[:8]} has no report of rows: its type is {task.task_type}, its status {task.task_status}",
        cure="give the id of a diff or rerun (list them with `trueup tasks`), or the path of a JSON report",
    )


def read_past(path: Path, *, with_keys: bool = True) -> Past:
    """Read the keys and hashes of a report, or only what it says about the table."""
    report = open_report(path)
    with showing(path):
        head = report.head
        summary = head["summary"]
        nodes = tuple(summary["nodes"])
        bits = {"/".join(pair): 1 << number for number, pair in enumerate(combinations(nodes, 2))}
        keys, hashes, pairs = _by_key(report.keys() if with_keys else (), bits)
        return Past(
            str(path.absolute()),
            summary,
            head["proof"],
            tuple(head["incomplete"]),
            tuple(keys),
            hashes,
            tuple(pairs),
            _unlisted(report),
        )


def _unlisted(report: Report) -> str:
    """Return why rows may differ that a report does not list. Hot rows are listed, and may be the only reason."""
    head, summary = report.head, report.head["summary"]
    reasons, hot = list(head["incomplete"]), sum(counts.get("hot", 0) > 0 for counts in report.counts.values())
    if len(reasons) <= hot and (reasons or summary["verdict"] != "INCOMPLETE"):
        return ""
    why = "; ".join(reasons) or "it is INCOMPLETE"
    return f"the earlier report may not list all differences, run a new diff: {why}"


def _by_key(differences: Iterable[Keyed], bits: Mapping[str, int]) -> tuple[list[KeyValues], Hashes, list[int]]:
    """Return each key once, with its hashes and the bits of all pairs that differ on it."""
    places: dict[KeyValues, int] = {}
    hashes = Hashes()
    pairs: list[int] = []
    for pair, key, key_hashes in differences:
        place = places.setdefault(key, len(pairs))
        if place == len(pairs):
            hashes.append(key_hashes)
            pairs.append(bits[pair])
        else:
            pairs[place] |= bits[pair]
            if HOT in key_hashes:
                hashes.set_hot(place)
    return list(places), hashes, pairs


def request_of(
    past: Past, config: Config, settings: DiffSettings, spark: SparkSettings, *, filtered: bool = True
) -> TableRequest:
    """Return a request for the same table, nodes and columns, with the addresses of the current configuration."""
    summary = past.summary
    if past.proof["digest"] == "canonical":
        reason = "the rows of the report were compared by value: columns may have other names or types per node"
        raise CheckFailed([reason], cure="run a new diff", table=past.table)
    numeric = {"numeric": summary["numeric"], "long_value": past.proof["long_value"], "digest": past.proof["digest"]}
    return TableRequest(
        table=past.table,
        nodes=config.select(None, list(past.nodes)),
        cluster=summary["cluster"],
        settings=replace(settings, **numeric),
        spark=spark,
        filter=summary["table_filter"] if filtered else "",
        expressions=config.expressions,
        columns=tuple(summary["columns"]),
        key=tuple(summary["primary_key"]),
        rerun_of=past.path,
    )


def same_hash(past: Past, spec: TableSpec) -> TableSpec:
    """Return the table with the columns and the hash seed of the report, so that hashes can be compared with it."""
    columns = {column.name: column for column in spec.columns}
    if set(columns) != set(past.summary["columns"]) or spec.is_keyless != past.is_keyless:
        raise CheckFailed(
            ["the key or the columns of the table have changed since the report was written"],
            cure="run a new diff",
            table=past.table,
        )
    ordered = tuple(columns[name] for name in past.summary["columns"])
    return replace(spec, columns=ordered, seed=int(past.proof["hash_seed"]))
