"""One step of a run on DataFrames: joins the updates of a side log to the states.

Reading order: `merge` (how a new value joins an old one), `late` (which updates are applied), `blocks` (the signed rows
of an update), `step` (the columns of a step, and its results).
"""

from __future__ import annotations
