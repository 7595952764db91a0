"""Certificates and verifications as text."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.config.visible import as_lines
from trueup.proof.stated import meaning_of, notes_of
from trueup.report.text import aligned, moment
from trueup.store.statements import Issued
from trueup.verbs.certificate.keys import fingerprint
from trueup.verbs.certificate.run import CertificateResult
from trueup.verbs.certificate.verify import VerifyResult

_VERDICTS = {
    "VERIFIED": "intact, signed with the expected key, and all tables are proven",
    "VERIFIED IN PART": "intact, and signed with the expected key; only a part is proven",
    "REFUSED": "not authentic",
    "UNVERIFIED": "not everything can be relied on",
}


def certificate_text(result: CertificateResult) -> str:
    """Return what was issued."""
    statement = result.document["statement"]
    lines = [f"{result.verdict}: certificate {statement['number']}: {meaning_of(statement['tables'])}"]
    for table in statement["tables"]:
        lines.append(f"  {table['table']}: {table['verdict']}{': ' + table['reason'] if table['reason'] else ''}")
        lines += [f"    {text}" for text in (*table["limits"], *notes_of(table))]
    signed_by = statement["signed_by"]
    lines.append(f"  signed with the key {fingerprint(signed_by)}" if signed_by else "  not signed (see --sign)")
    lines += [f"  document: {result.path}", f"  page: {result.page}"]
    return as_lines(lines)


def verify_text(result: VerifyResult) -> str:
    """Return the verdict, and what each file states."""
    lines = [f"{result.verdict}: {_VERDICTS[result.verdict]}"]
    for file in result.files:
        lines.append(f"  {file.path}")
        lines += [f"    refused: {reason}" for reason in file.wrong]
        lines += [f"    not verified: {reason}" for reason in file.unverified]
        lines += [] if file.wrong else [f"    {line}" for line in file.stated]
        lines += [f"    note: {remark}" for remark in file.remarks]
    return as_lines(lines)


def issued_text(issued: Sequence[Issued]) -> str:
    """Return one line per certificate."""
    rows = [["NUMBER", "ISSUED (UTC)", "VERDICT", "TABLES", "SHA-256"]]
    rows += [[str(each.number), moment(each.issued_at), each.verdict, each.tables, each.sha256[:16]] for each in issued]
    return as_lines(aligned(rows, right={0}))
