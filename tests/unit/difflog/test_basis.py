"""The settings of a log: what a record keeps, and that versions stay unique when the multiplier changes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trueup.verbs.difflog.basis import Basis, LogColumns, changes
from trueup.verbs.difflog.migration_plan import slow_sql
from trueup.verbs.difflog.model import Rule

NAMES = st.sampled_from(["a", "b", "c", "d"])
RULES = st.builds(Rule, st.sampled_from(["replace", "sum", "last", "expr"]), by=NAMES, sql=st.sampled_from(["", "x"]))
BASES = st.builds(
    Basis,
    multiplier=st.integers(2, 10**6),
    buckets=st.integers(1, 64),
    entity=NAMES,
    key=st.lists(NAMES, min_size=1, unique=True).map(tuple),
    fast_version=NAMES,
    deleted=st.sampled_from(["", "d"]),
    dropped=st.lists(NAMES, unique=True).map(tuple),
    rules=st.dictionaries(NAMES, RULES),
    logs=st.dictionaries(NAMES, st.builds(LogColumns, st.lists(NAMES).map(tuple), NAMES)),
    ttl_days=st.integers(0, 9),
    ttl_column=NAMES,
    has_expired=st.booleans(),
)


@given(BASES, BASES)
def test_a_record_keeps_the_settings(one: Basis, other: Basis) -> None:
    again = Basis.from_json(json.loads(json.dumps(one.as_json())))
    assert again == one
    assert changes(one, again, ["a", "b", "c", "d"]) == []
    # A change is seen in both directions, except new side logs.
    there, back = (changes(*pair, ["a", "b", "c", "d"]) for pair in ((one, other), (other, one)))
    logs = "the list of side logs"
    key = {*one.key, one.fast_version} == {*other.key, other.fast_version}
    if key:
        assert {change.setting for change in there} - {logs} == {change.setting for change in back} - {logs}


HISTORY = st.lists(st.tuples(st.sampled_from(["run", "faster", "migrate"]), st.integers(2, 200)), max_size=30)


@given(st.integers(2, 200), HISTORY)
def test_no_version_is_used_twice(multiplier: int, history: list[tuple[str, int]]) -> None:
    """The versions of a key grow, whatever multipliers follow each other."""
    slow, fast = 1, 0
    versions = [multiplier * slow + fast]
    for event, number in history:
        if event == "migrate":
            if number <= fast or number == multiplier:
                continue
            expression = slow_sql(multiplier, number).replace("L ", " ").replace("div", "//")
            slow = eval(expression, {"SlowVersion": slow})  # noqa: S307
            multiplier = number
        else:
            fast = min(fast + (event == "faster"), multiplier - 1)
            slow += 1
        versions.append(multiplier * slow + fast)
    assert versions == sorted(set(versions))
