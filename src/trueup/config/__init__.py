"""The configuration: trueup.toml, ${VAR} and options become frozen dataclasses; passwords are never shown.

Reading order: `model` (nodes, clusters, selection), `settings` (the sections with their rules), `load` (the whole path
on one screen), `sources` (file, variables and options), `values` (${VAR} and types), `address` (libpq connection
strings), `secrets` (find and mask passwords), `logs` (masked log records), `transport` (no
password without TLS), `files` (private files), `trust` (files that others can have written), `process` (the command of
trueup itself), `wording` (error messages), `visible` (no control characters on a terminal), `template` (the file that
`trueup init` writes).
"""

from __future__ import annotations
