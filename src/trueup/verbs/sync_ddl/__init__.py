"""Change the tables of a started sync: `trueup sync add` and `remove`.

Reading order: `change_tables` (add and remove tables).
"""

from __future__ import annotations
