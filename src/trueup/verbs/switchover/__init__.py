"""`trueup switchover`: move applications to the copy that a sync keeps, with a pause of milliseconds, and back.

Reading order: `run` (the path: the phases of docs/switchover.md), `request` (what the user asked for), `phases` (names,
times and the budget of the pause), `deadline` (servers that do not answer), `pointer` (which database is in use),
`guard` and `fence` (no writers), `hold` (no TRUNCATE either), `prepare` (what is done before the pause), `pause` (its
phases), `ready` (what they do), `rounds` and `proof` (are both databases equal), `validated` (a validation as the
proof), `gate` (the conditions), `way_back` (what a rollback needs), `compared`, `role_rights` and `accepted` (are the
schemas equal, may roles do the same, and what was accepted by name), `decision` (the commit that decides, and the
opening), `outcome` (the report) and `document` (its page), `ending` (abort, reset), `finish`, `room` (the size of a
change log), `status`, `connect` (for applications).

docs/design/switchover.md explains why no write is lost.
"""

from __future__ import annotations
