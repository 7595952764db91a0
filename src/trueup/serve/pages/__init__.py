"""The content of pages, from what the collector has seen last.

Reading order: `parts` (what several pages have), `overview`, `tables`, `tasks`, `validations`, `tubes`, `syncs`,
`others` (schedule, doctor, actions).
"""

from __future__ import annotations
