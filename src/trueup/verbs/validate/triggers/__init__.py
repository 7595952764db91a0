"""Changes recorded by triggers, for a node whose log is not logical.

Reading order: `sides` (the tubes of a validation), `tubes` (changes from a tube or a change log), `pod_changes` (keys
of pods as changes), `tube_coverage` (whether triggers capture everything).
"""

from __future__ import annotations
