"""The command line: one file per command, each of them parse, call, print. Only `main` turns errors into exit codes.

Reading order: `main` (the verbs, errors), `every` (log options), `options` (the table of shared options), `output`,
`environment` (variables of options); the commands `diff`, `accept`, `certificate`, `repair`, `schema`, `tasks`,
`history`, `doctor`, `schedule`, `init`, `tube`, `tube_run`, `tube_options`, `sync`, `switchover`, `validate`,
`validate_options`, `prove`, `validate_detach`, `difflog`, `serve`, `demo`; `alerts` (after a command), `metrics`;
`complete` (shells); `reference` and `reference_settings` (docs/reference.md).
"""

from __future__ import annotations
