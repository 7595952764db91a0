"""The configuration: trueup.toml, ${ENV} and options become frozen dataclasses; passwords are never shown.

Read in this order: `model` (what there is to configure), `load` (the whole path on one screen), `sources`
(file, variables and options), `values` (${VAR} and types), `address` (libpq connection strings), `secrets`
(finding and masking passwords), `wording` (how errors are worded), `template` (what `trueup init` writes).
"""

from __future__ import annotations

from trueup.config.load import load
from trueup.config.model import Config, DiffSettings, Node, SparkSettings, TaskSettings
from trueup.config.secrets import mask, secrets_of
from trueup.config.template import TEMPLATE, write_template

__all__ = [
    "TEMPLATE",
    "Config",
    "DiffSettings",
    "Node",
    "SparkSettings",
    "TaskSettings",
    "load",
    "mask",
    "secrets_of",
    "write_template",
]
