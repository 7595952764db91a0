"""Issue a certificate: gather what was proven, append the statement to the chain, sign it, write the files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.errors import StoreError
from trueup.proof.document import FORMAT, canonical, file_text, hash_of
from trueup.proof.stated import EXIT_CODES, Verdict, limits_of, verdict_of, verdict_of_all
from trueup.report.html import write_html
from trueup.report.json_file import private_file
from trueup.store import TaskStore, times
from trueup.store.statements import Issued
from trueup.verbs.certificate.keys import ALGORITHM, public_text, read_private
from trueup.verbs.certificate.page import page_of_certificate

LIMITS = (
    "Equal means: equal row hashes of 64 bits and equal counts per block; the row hash is not a cryptographic one, and"
    " its seeds are random, drawn after the rows could be written, and never used again.",
    "The statement is about the rows at the positions that it names. It says nothing about later changes.",
    "It states what trueup read over its connections to the nodes: who controls a node, or the machine that issued the"
    " statement, controls what is stated.",
)


@dataclass(frozen=True)
class CertificateResult:
    """A certificate that was issued, and its files."""

    document: Mapping[str, Any]
    path: str
    page: str

    @property
    def verdict(self) -> Verdict:
        """PROVEN; PROVEN IN PART if not all of a table was compared; or VOID if a table is not proven."""
        verdict: Verdict = self.document["statement"]["verdict"]
        return verdict

    @property
    def exit_code(self) -> int:
        """Return 0 if all tables are proven as a whole, else 2."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {"verdict": self.verdict, "path": self.path, "page": self.page, "document": self.document}


def run(
    tables: Callable[[], Sequence[Mapping[str, Any]]], *, sign: str, output: str, store: TaskStore, version: str
) -> CertificateResult:
    """Issue a certificate of tables. Nothing is issued if the key is refused, or `tables` raises."""
    key = read_private(Path(sign)) if sign else None
    proven = [_stated(table) for table in tables()]
    statement: dict[str, Any] = {
        "format": FORMAT,
        "id": str(uuid.uuid4()),
        "issued_at": times.now(),
        "program": {"name": "trueup", "version": version},
        "verdict": verdict_of_all(proven),
        "tables": proven,
        "limits": list(LIMITS),
        "signed_by": public_text(key.public_key()) if key else None,
    }

    def make(last: Issued | None, chain: str) -> Issued:
        previous = {"id": last.id, "number": last.number, "sha256": last.sha256} if last else None
        number = last.number + 1 if last else 1
        stated = {**statement, "chain": chain or statement["id"], "number": number, "previous": previous}
        document: dict[str, Any] = {"statement": stated, "sha256": hash_of(stated)}
        if key:
            value = key.sign(canonical(stated)).hex()
            document["signature"] = {"algorithm": ALGORITHM, "public_key": stated["signed_by"], "value": value}
        names = ", ".join(table["table"] for table in proven)
        return Issued(
            number, stated["id"], stated["issued_at"], document["sha256"], stated["verdict"], names, file_text(document)
        )

    issued = store.issue(make)
    return write(issued, Path(output or f"certificate-{issued.number}.json"))


def _stated(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with its verdict and its limits."""
    return {**table, "verdict": verdict_of(table), "limits": [] if table["reason"] else limits_of(table)}


def write(issued: Issued, path: Path) -> CertificateResult:
    """Write the document of a certificate to a new file, and its page beside it."""
    document = json.loads(issued.document)
    again = f"the certificate was issued; write it with: trueup certificate show {issued.number} --output FILE"
    try:
        with private_file(path, new=True) as file:
            file.write(issued.document)
    except FileExistsError:
        raise StoreError(f"{path} exists; {again}", cure="choose another file") from None
    except StoreError as error:
        error.message = f"{error.message}; {again}"
        raise
    page = write_html(path.with_suffix(".html"), page_of_certificate(document, path.name))
    return CertificateResult(document, str(path.absolute()), str(page.absolute()))
