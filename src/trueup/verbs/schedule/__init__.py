"""Runs the jobs in the section [schedule] of trueup.toml at their times, each as a separate process.

Reading order: `run` (the path of the verb), `model` (a job), `config` (the section of the configuration), `times`
(intervals and cron expressions), `process` (one run of a job), `listing` (next times and last results).
"""

from __future__ import annotations
