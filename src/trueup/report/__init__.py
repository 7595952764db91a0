"""The result for people and programs: one typed model, shown as text, JSON or HTML.

Reading order: `model`, `text`, `json_file`, `page` (what a page says), `html` (how it is written).
"""

from __future__ import annotations
