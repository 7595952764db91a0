"""The schema of the target: what becomes of the objects of the source, and `--create-schema`.

Reading order: `plan_target` (whether tables that exist can take the rows), `plan_schema` (what will be created, or why
it cannot), `features` (what the target's server was built without), `plan_keys` (foreign keys), `plan_notes` (what a
plan says about the rest), `roles` (owners, privileges and memberships), `left_out` (objects that depend on excluded
tables), `not_copied` and `database_settings` (what a dump of a schema lacks), `programs` (pg_dump and pg_restore),
`dump` (the schema of the source in a file), `create_schema` (the path of `--create-schema`), `create_roles`, `created`
(what a start has created, so that a drop can remove it).
"""

from __future__ import annotations
