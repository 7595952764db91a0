"""Changes recorded by triggers, for a source whose log is not logical.

Reading order: `tubes` (changes from a tube or a change log), `tube_coverage` (whether triggers capture everything).
"""

from __future__ import annotations
