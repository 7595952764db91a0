"""Choose the differences of a report to accept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trueup.errors import ConfigError
from trueup.report.json_reader import Report
from trueup.store.accepted import AcceptedDifference
from trueup.task.accepted import accepted_entries


class Chosen:
    """The differences of a report to accept: all that are confirmed, or those of some keys."""

    def __init__(self, report: Report, only: Sequence[str]) -> None:
        self._report = report
        self._is_keyless = not report.head["summary"]["primary_key"]
        self._only = {_key(text, report): text for text in only}

    def differences(self) -> Iterator[AcceptedDifference]:
        """Yield the differences; raise ConfigError if a key is not listed."""
        missing = dict(self._only)
        for section in self._report.sections:
            entries: Iterable[Mapping[str, Any]] = self._report.differences(section)
            for each in accepted_entries(entries, section.pair, is_keyless=self._is_keyless):
                if not self._only or each.key in self._only:
                    missing.pop(each.key, None)
                    yield each
        if missing:
            raise ConfigError(
                f"the report lists no confirmed difference with the key {next(iter(missing.values()))}",
                cure='write a key of several columns as a JSON list, such as \'["7", "a"]\'',
            )


def _key(text: str, report: Report) -> tuple[str, ...]:
    """Return a key from the text of an option: the value, or a JSON list for a key of several columns."""
    if len(report.head["summary"]["primary_key"]) < 2:
        return (text,)
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list):
        cure = 'write it as a JSON list, such as \'["7", "a"]\''
        raise ConfigError(f"--only {text}: the key has several columns", cure=cure)
    return tuple(value if isinstance(value, str) else json.dumps(value) for value in values)
