"""A validation of tables whose names contain %, {}, quotes, a backslash, a line break and an emoji."""

from __future__ import annotations

import pytest

from support.odd_names import CHANGE, CREATE, FILL, KEY, PARENT, PARTS, SCHEMA, TABLE, VALUE
from support.validate import Copy


@pytest.mark.parametrize("capture", ["log", "changelog"])
def test_odd_names(copy: Copy, capture: str) -> None:
    copy.both(CREATE)
    copy.up.execute(FILL)
    copy.replicate(f"{TABLE}, {PARTS}, {SCHEMA}.{PARENT}")
    copy.start(f"{TABLE},{PARTS}", changes=capture, filters=(f"{TABLE}: {VALUE} IS NOT NULL",), scrub_share=0.5)
    copy.up.execute(CHANGE)
    fence = copy.fence()
    assert (fence.validated, fence.errors, fence.reasons) == (True, 0, ())
    copy.down.execute(f"UPDATE {TABLE} SET {VALUE} = 'wrong' WHERE {KEY} = 5")
    copy.up.execute(f"TRUNCATE {PARTS}")
    [error] = copy.until(copy.errors)
    assert (error.source, error.key) == (TABLE, ("5",))
