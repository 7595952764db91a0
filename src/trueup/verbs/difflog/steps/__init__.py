"""One step of a run: joins the updates of a side log to the states.

Reading order: `merge` (how a new value joins an old one), `late` (which updates are applied), `columns` (the names of
the columns of a frame), `step` (adds a step to a frame, with Spark), `blocks` (the signed rows of an update), `rows`
(the rows of the outputs, with Arrow), `schemas` (their types), `write` (the task that writes them), `sent` (sends it to
the executors).
"""

from __future__ import annotations
