"""The demo: throw-away servers, example data, and a walk through the verbs."""

from __future__ import annotations
