"""The command line: parse, call, show. No logic here; `main` is the single place where errors become exit codes.

Reading order: `main`, `options` (shared by the verbs), then a file for each group of commands.
"""

from __future__ import annotations
