"""Verify certificates offline: bytes, hash, signature, and the links of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trueup.config.wording import counted
from trueup.errors import ConfigError, StoreError
from trueup.proof.document import canonical, hash_of, read_document
from trueup.proof.stated import limits_of, notes_of, verdict_of, verdict_of_all
from trueup.report.text import moment
from trueup.verbs.certificate.keys import ALGORITHM, fingerprint, is_fingerprint, is_signed, public_text, read_public

Verdict = Literal["VERIFIED", "VERIFIED IN PART", "REFUSED", "UNVERIFIED"]
_EXIT: dict[Verdict, int] = {"VERIFIED": 0, "VERIFIED IN PART": 2, "REFUSED": 1, "UNVERIFIED": 2}


@dataclass(frozen=True)
class VerifiedFile:
    """One certificate: what is wrong with it, what could not be verified, and what it states.

    `in_part`: what its tables are not proven for.
    """

    path: str
    wrong: tuple[str, ...]
    unverified: tuple[str, ...]
    in_part: tuple[str, ...]
    remarks: tuple[str, ...]
    # What it states, in lines.
    stated: tuple[str, ...]
    statement: Mapping[str, Any]


@dataclass(frozen=True)
class VerifyResult:
    """All certificates that were verified.

    VERIFIED: all are intact, signed with the expected key, linked, and state a proof. VERIFIED IN PART: the same, of a
    part of a table. REFUSED: one is not authentic. UNVERIFIED: one is not signed, no key was expected, or a table is
    not proven.
    """

    files: tuple[VerifiedFile, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict; what is wrong outranks what could not be verified."""
        if any(file.wrong for file in self.files):
            return "REFUSED"
        if any(file.unverified for file in self.files):
            return "UNVERIFIED"
        return "VERIFIED IN PART" if any(file.in_part for file in self.files) else "VERIFIED"

    @property
    def exit_code(self) -> int:
        """Return 0 if verified, 1 if refused, 2 if unverified or verified in part."""
        return _EXIT[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {"verdict": self.verdict, "files": [asdict(file) for file in self.files]}


def verify(paths: Sequence[Path], key: Path | None = None, fingerprint_of_key: str = "") -> VerifyResult:
    """Verify certificates, the oldest first: several files are links of one chain, without a gap.

    Without a key or its fingerprint nothing is VERIFIED: anyone can sign. Raises StoreError if a file cannot be read,
    and ConfigError if the key cannot be, or the fingerprint is none.
    """
    if key and fingerprint_of_key:
        raise ConfigError("--key and --fingerprint cannot be combined", cure="leave out one of them")
    if fingerprint_of_key and not is_fingerprint(fingerprint_of_key):
        raise ConfigError("--fingerprint is not one of trueup", cure="give the 32 digits that keygen printed")
    wanted = fingerprint(public_text(read_public(key))) if key else fingerprint_of_key
    files: list[VerifiedFile] = []
    before: Mapping[str, Any] | None = None
    for path in paths:
        document, damage = read_document(path)
        statement = document["statement"]
        wrong = [damage] if damage else []
        try:
            wrong += [*_wrong(document, wanted), *(_links(before, statement) if files else ())]
            unverified = tuple(_unverified(document, wanted))
            remarks = tuple(_remarks(statement, is_first=not files))
            proven = [table for table in statement["tables"] if not table["reason"]]
            in_part = tuple(f"{table['table']}: {limit}" for table in proven for limit in limits_of(table))
            stated = tuple(line for table in statement["tables"] for line in _lines(table))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} is not a certificate, or is damaged: {type(error).__name__}: {error}",
                cure="give a file that trueup certificate wrote",
            ) from None
        files.append(VerifiedFile(str(path), tuple(wrong), unverified, in_part, remarks, stated, statement))
        before = statement
    return VerifyResult(tuple(files))


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is stated about a table."""
    when = table.get("proven_at")
    nodes = ", ".join(f"{each['node']} at {each['position']}" for each in table.get("nodes", ()))
    at = f" at {moment(when)} UTC on {nodes}" if when else ""
    if table["reason"]:
        yield f"{table['table']}: {table['verdict']}{at}"
        return
    yield f"{table['table']}: {table['verdict']}{at}, {counted(table['rows'], 'row')}"
    yield f"  columns: {', '.join(str(column[0]) for column in table['compared']['columns'])}"
    yield from (f"  {limit}" for limit in limits_of(table))
    yield from (f"  note: {note}" for note in notes_of(table))


def _wrong(document: Mapping[str, Any], wanted: str) -> Iterator[str]:
    statement = document["statement"]
    if document.get("sha256") != hash_of(statement):
        yield "the statement does not have its hash: it was changed"
    # Computed from the facts again: who signs cannot state more than the facts do.
    verdicts = [(table["verdict"], verdict_of(table)) for table in statement["tables"]]
    verdicts.append((statement["verdict"], verdict_of_all(statement["tables"])))
    if any(stated != computed for stated, computed in verdicts):
        yield "its verdict contradicts what it says about its tables"
    signature = document.get("signature")
    signed_by = statement["signed_by"]
    if signature is None:
        if signed_by is not None:
            yield "its signature was removed"
        elif wanted:
            yield "it is not signed"
        return
    public = str(signature["public_key"])
    if signature["algorithm"] != ALGORITHM or public != signed_by:
        yield "its signature is of another key than the statement names"
    elif not is_signed(public, str(signature["value"]), canonical(statement)):
        yield "its signature is wrong: it was changed, or not signed with this key"
    if wanted and _short(public) != wanted:
        yield f"it is signed with another key ({_short(public)}, expected {wanted})"


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


def _unverified(document: Mapping[str, Any], wanted: str) -> Iterator[str]:
    statement = document["statement"]
    if document.get("signature") is None:
        yield "it is not signed: the hash shows damage, and not who issued it"
    elif not wanted:
        yield (
            f"the issuer is not known: the key {_short(str(statement['signed_by']))} is part of the file; give the"
            " public key of the issuer with --key, or its fingerprint with --fingerprint"
        )
    if not statement["tables"]:
        yield "it states nothing: it has no table"
    for table in statement["tables"]:
        if verdict_of(table) == "VOID":
            yield f"it states that {table['table']} is not proven: {table['reason'] or 'it has fewer than two nodes'}"


def _remarks(statement: Mapping[str, Any], *, is_first: bool) -> Iterator[str]:
    previous = statement["previous"]
    if is_first and previous is not None:
        yield f"number {statement['number']} of its chain: earlier ones were not given, and not verified"


def _short(public: str) -> str:
    try:
        return fingerprint(public)
    except ValueError:
        return "unreadable"
