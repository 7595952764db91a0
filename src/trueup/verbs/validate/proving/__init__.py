"""The proof of a validation: blocks of all rows, hashed on both nodes, and certificates made of them.

Reading order: `scrub` (which block is hashed when, and what is stored), `scrub_block` (one block), `certify` (the
certificate of a complete pass), `record` (the certificate of a run of `trueup diff` or `trueup check`), `target`
(changes of the target), `compared` (which of them need no comparison), `target_changes` (a protocol: where they come
from), `target_log` and `target_tube` (its two implementations), `prove` (what certificates and changes prove now).
"""

from __future__ import annotations
