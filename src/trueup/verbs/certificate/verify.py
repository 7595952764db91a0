"""Verify certificates offline: bytes, hash, signature, and the links of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trueup.errors import StoreError
from trueup.proof.document import canonical, hash_of, read_document
from trueup.verbs.certificate.keys import ALGORITHM, fingerprint, is_signed, public_text, read_public

Verdict = Literal["VERIFIED", "REFUSED", "UNVERIFIED"]
_EXIT: dict[Verdict, int] = {"VERIFIED": 0, "REFUSED": 1, "UNVERIFIED": 2}


@dataclass(frozen=True)
class VerifiedFile:
    """One certificate: what is wrong with it, what could not be verified, and what it states."""

    path: str
    wrong: tuple[str, ...]
    unverified: tuple[str, ...]
    remarks: tuple[str, ...]
    statement: Mapping[str, Any]


@dataclass(frozen=True)
class VerifyResult:
    """All certificates that were verified.

    VERIFIED: all are intact, signed, linked, and state a proof. REFUSED: one is not authentic. UNVERIFIED: one is not
    signed, or states that a table is not proven.
    """

    files: tuple[VerifiedFile, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict; what is wrong outranks what could not be verified."""
        if any(file.wrong for file in self.files):
            return "REFUSED"
        return "UNVERIFIED" if any(file.unverified for file in self.files) else "VERIFIED"

    @property
    def exit_code(self) -> int:
        """Return 0 if verified, 1 if refused, 2 if unverified."""
        return _EXIT[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {"verdict": self.verdict, "files": [asdict(file) for file in self.files]}


def verify(paths: Sequence[Path], key: Path | None = None) -> VerifyResult:
    """Verify certificates, the oldest first: several files are links of one chain, without a gap.

    Raises StoreError if a file cannot be read, and ConfigError if the key cannot be.
    """
    wanted = public_text(read_public(key)) if key else None
    files: list[VerifiedFile] = []
    before: Mapping[str, Any] | None = None
    for path in paths:
        document, damage = read_document(path)
        statement = document["statement"]
        wrong = [damage] if damage else []
        try:
            wrong += [*_wrong(document, wanted), *(_links(before, statement) if files else ())]
            unverified, remarks = list(_unverified(document)), list(_remarks(document, wanted, is_first=not files))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} is not a certificate, or is damaged: {type(error).__name__}: {error}",
                cure="give a file that trueup certificate wrote",
            ) from None
        files.append(VerifiedFile(str(path), tuple(wrong), tuple(unverified), tuple(remarks), statement))
        before = statement
    return VerifyResult(tuple(files))


def _wrong(document: Mapping[str, Any], wanted: str | None) -> Iterator[str]:
    statement = document["statement"]
    if document.get("sha256") != hash_of(statement):
        yield "the statement does not have its hash: it was changed"
    proven = all(table["verdict"] == "PROVEN" and not table["reason"] for table in statement["tables"])
    if (statement["verdict"] == "PROVEN") != proven or not statement["tables"]:
        yield "its verdict contradicts its tables"
    signature = document.get("signature")
    signed_by = statement["signed_by"]
    if signature is None:
        if signed_by is not None:
            yield "its signature was removed"
        elif wanted is not None:
            yield "it is not signed"
        return
    public = str(signature["public_key"])
    if signature["algorithm"] != ALGORITHM or public != signed_by:
        yield "its signature is of another key than the statement names"
    elif not is_signed(public, str(signature["value"]), canonical(statement)):
        yield "its signature is wrong: it was changed, or not signed with this key"
    if wanted is not None and public != wanted:
        yield f"it is signed with another key ({_short(public)}, expected {fingerprint(wanted)})"


def _links(before: Mapping[str, Any] | None, statement: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a statement is not the next one after another."""
    assert before is not None
    previous = statement["previous"]
    if statement["chain"] != before["chain"]:
        yield "it is of another chain than the file before"
    elif statement["number"] != before["number"] + 1:
        yield f"it is number {statement['number']} of its chain, and follows number {before['number']}"
    if previous is None or previous["sha256"] != hash_of(before) or previous["number"] != before["number"]:
        yield "it does not follow the file before: the hash that it has of its predecessor is another one"
    if statement["signed_by"] != before["signed_by"]:
        yield "it is signed with another key than the file before"


def _unverified(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("signature") is None:
        yield "it is not signed: the hash shows damage, and not who issued it"
    for table in document["statement"]["tables"]:
        if table["verdict"] != "PROVEN":
            yield f"it states that {table['table']} is not proven: {table['reason']}"


def _remarks(document: Mapping[str, Any], wanted: str | None, *, is_first: bool) -> Iterator[str]:
    statement = document["statement"]
    if document.get("signature") is not None and wanted is None:
        yield (
            f"signed with the key {_short(str(statement['signed_by']))}, which is part of the file: this shows that it"
            " is intact, and not who issued it; give the public key with --key"
        )
    previous = statement["previous"]
    if is_first and previous is not None:
        yield f"number {statement['number']} of its chain: earlier ones were not given, and not verified"


def _short(public: str) -> str:
    try:
        return fingerprint(public)
    except ValueError:
        return "unreadable"
