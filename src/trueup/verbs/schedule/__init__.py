"""Jobs at their times: the commands of `[schedule]` in trueup.toml, run as processes of their own.

Reading order: `model` (what a job is), `config` (the section, checked), `times` (when), `run` (the whole path),
`process` (one run of a job), `listing` (next times and last results).
"""

from __future__ import annotations
