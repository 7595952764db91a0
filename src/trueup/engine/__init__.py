"""The engine: runs picklable tasks on Spark, or on threads of this process, and yields their answers.

Reading order: `work` (tasks, answers, room), `slots` (how many tasks at once), `waits` (Ctrl-C ends them), `local`
(threads), `spark` (waves of Spark jobs), `handover` (threads first, then Spark), `permits` (the slots that both
share), `background` (start Spark meanwhile), `lasting` (Spark for jobs that run until they are stopped), `envelope`
(what is sent to the workers), `sealed` (on this machine in a private file), `garbage` (their garbage collection),
`stalls` (notice a job that hangs), `session`, `launch` and `java` (start Spark), `archive` and `archive_maker` (the
classes of Java in one file), `cache` (where it is), `python` (the Python of its workers), `jvm` (its Java process),
`scratch` (temporary folders), `failures` (errors of the environment, and defects), `choose` (threads or Spark),
`progress` (what is shown meanwhile), `memory` (free memory, and the garbage collector during large runs),
`bulk_session` (a Spark session whose results do not depend on its settings), `parquet_files` (Parquet files and their
types in Spark), `local_rows` (rows of Spark in this process).
"""

from __future__ import annotations
