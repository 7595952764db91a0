"""The engine: hands picklable tasks to Spark (or to threads of this process) and yields their results.

Reading order: `work` (tasks, results, room), `slots` (how many at once), `local` (threads), `spark` (waves of jobs),
`envelope` (what travels to the workers), `session` and `java` (starting Spark), `choose` (which of the two), `progress`
(what people see meanwhile).
"""

from __future__ import annotations
