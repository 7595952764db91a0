"""A validation as a Spark streaming job, or with Spark tasks that judge the keys.

Reading order: `lasting` (threads or Spark), `stream` (the streaming query, and what the driver does), `tasks` (what
runs in the executors).
"""

from __future__ import annotations
