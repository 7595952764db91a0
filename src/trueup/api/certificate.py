"""`trueup.certify`, `verify_certificate` and `certificate_key`: signed statements of what was proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trueup.api.parameters import configuration
from trueup.config.model import Config
from trueup.errors import ConfigError
from trueup.store import TaskStore
from trueup.store.statements import Issued
from trueup.verbs.certificate import keys
from trueup.verbs.certificate.from_task import tables_of_task
from trueup.verbs.certificate.run import CertificateResult, write
from trueup.verbs.certificate.run import run as certificate_run
from trueup.verbs.certificate.verify import VerifyResult, verify
from trueup.verbs.validate.to_certificate import tables_of_validation


def certify(
    tables: Sequence[str] = (),
    *,
    validation: str = "",
    tasks: Sequence[str] = (),
    sign: str = "",
    output: str = "",
    meta: str = "",
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
) -> CertificateResult:
    """Write a statement of what was proven, as a JSON document and an HTML page, and return it.

    Give a validation (and its tables; default: all), or the ids of diffs and checks with the verdict MATCH. `sign` is
    the file of a private key, `output` the JSON file. What a validation has not proven is stated as VOID. Raises
    CheckFailed if a task proves nothing, and ConfigError if other users can read the key; nothing is written then.
    """
    from trueup import __version__

    configured = configuration(config, nodes)
    if bool(validation) == bool(tasks):
        raise ConfigError("expected either --validation or --task", cure="say whose proof is stated")
    if tables and tasks:
        raise ConfigError("tables cannot be combined with --task", cure="leave them out: all of the task are stated")

    def proven() -> list[dict[str, Any]]:
        if validation:
            return tables_of_validation(configured, validation, tables, meta_node=meta)
        return [table for task in tasks for table in tables_of_task(task, store)]

    with TaskStore(task_db, configured=configured.tasks.task_db) as store:
        return certificate_run(proven, sign=sign, output=output, store=store, version=__version__)


def verify_certificate(*files: str, key: str = "", fingerprint: str = "") -> VerifyResult:
    """Verify certificates without any connection; several files are links of one chain, the oldest first.

    `key` is the file of the public key that must have signed them, `fingerprint` its fingerprint; without both, nothing
    is VERIFIED, because a signature alone names no issuer. Raises StoreError if a file is no certificate.
    """
    return verify([Path(file) for file in files], Path(key) if key else None, fingerprint)


def certificate_key(path: str) -> str:
    """Write a new private key to a file, and the public key beside it; return the path of the public key.

    Raises ConfigError if a file exists: a key is never replaced.
    """
    return str(keys.make_pair(Path(path)))


def issued_certificates(*, config: Config | str | None = None, task_db: str | None = None) -> list[Issued]:
    """Return the certificates that were issued with a task store, the oldest first."""
    with TaskStore(task_db, configured=configuration(config).tasks.task_db) as store:
        return store.issued()


def write_certificate(
    number: int, output: str, *, config: Config | str | None = None, task_db: str | None = None
) -> CertificateResult:
    """Write the files of a certificate that was issued, again."""
    with TaskStore(task_db, configured=configuration(config).tasks.task_db) as store:
        return write(store.certificate(number), Path(output))
