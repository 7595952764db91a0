"""The configuration: trueup.toml, ${ENV} and options become frozen dataclasses; passwords are never shown.

Read in this order: `model` (what there is to configure), `load` (the whole path on one screen), `sources`
(file, variables and options), `values` (${VAR} and types), `address` (libpq connection strings), `secrets`
(finding and masking passwords), `wording` (how errors are worded), `template` (what `trueup init` writes).
"""

from __future__ import annotations
