"""`trueup tube run`: keeps a sink in step with the tables of a tube. Tubes themselves are in trueup.capture.triggers.

Reading order: `model` (options, summary, job), `target` (the sink of a command that names none), `run` (the loop:
claim, enrich, write, acknowledge), `restart` (the outer loop: locks, outages, the task store), `reading` (the rows of a
batch), `aside` (tables with problems), `pipeline` and `pipeline_spark` (enrich and write, on threads or Spark),
`hand_over` (from threads to Spark), `deliver` (documents to the sink), `letters` (dead letters), `control` and
`garbage` (control pods), `waiting` and `pace` (heartbeats, pauses, batch sizes), `text` and `watch` (output of the
commands).
"""

from __future__ import annotations
