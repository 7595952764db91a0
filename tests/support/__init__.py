"""Helpers and types that several test files import: `from support.fixtures import Compare`."""

from __future__ import annotations
