"""The data source formats that Spark loads by name: `trueup`, `trueup_tube` and `trueup_changes`.

Reading order: `formats` (registers all three in a session), `table` (the format trueup: a table as a DataFrame),
`tube` (the format trueup_tube: a tube as a stream), `changes` (the format trueup_changes: a replication slot as a
stream), `nodes` (the options that say which node to read), `errors` (errors as Spark shows them).
"""

from __future__ import annotations
