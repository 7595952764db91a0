"""The result for people and programs: one typed model, shown as text, JSON or HTML.

Reading order: `model`, `text`, `json_file`, `html`.
"""

from __future__ import annotations
