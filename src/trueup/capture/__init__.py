"""Capture: which rows of a table were changed, recorded by triggers or read from the server's log.

Reading order: `triggers` (tubes: queue tables that triggers write touched keys into), `log` (logical decoding).
"""

from __future__ import annotations
