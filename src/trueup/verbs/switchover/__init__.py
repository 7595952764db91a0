"""Copy, sync and switchover: a whole database carried over to another one, close enough to move an application.

Reading order of the sync: `sync` (the whole path), `plan` (what will happen, or why not), `changelog` (which keys were
touched), `copy` (all rows once), `round` (what changed since), `large` and `ordered` (rounds that are large, or that
have to mind foreign keys), `sequences`, `create_schema`, `marks` (how far it is, kept on the target).

Reading order of the switchover: `execute` (the whole path), `pointer` (which database is in use), `guard` and `fence`
(nobody writes), `prepare` (what can be done before), `rounds` and `proof` (are both equal), `gate` (the conditions),
`validated` (a validation as the proof), `ending` and `status`, `connect` (for applications). Why it is right stands in
docs/design/switchover.md.
"""

from __future__ import annotations
