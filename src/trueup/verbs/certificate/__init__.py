"""The verb certificate: state in a signed document what was proven, and verify such documents offline.

Reading order: `run` (issue a statement), `from_task` (what a diff or check proved), `keys` (Ed25519), `verify` (one
file, and a chain of files), `page` (the HTML page), `text` (results as text).

What a validation proved is in `verbs.validate.to_certificate`, and the bytes of a document in `proof.document`.
"""

from __future__ import annotations
