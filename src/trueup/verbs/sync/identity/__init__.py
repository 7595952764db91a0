"""Which sync it is, and which databases it is of.

Reading order: `naming` (several syncs of one name), `history` (failovers and restores), `chain` (syncs one after the
other).
"""

from __future__ import annotations
