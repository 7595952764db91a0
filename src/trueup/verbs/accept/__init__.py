"""The verb accept: record the differences of a report that are known and wanted.

Reading order: `run` (from the report to the task store), `choose` (which differences), `text` (acceptances as text).

What a later diff does with them is in `task.accepted` and `task.compare.accepted`.
"""

from __future__ import annotations
