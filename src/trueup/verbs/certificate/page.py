"""The HTML page of a certificate: for people. Only the JSON document is signed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.proof.stated import meaning_of, notes_of
from trueup.report.page import Page, Table, Tone
from trueup.report.text import moment
from trueup.verbs.certificate.keys import fingerprint

_TONES: dict[str, Tone] = {"PROVEN": "good", "PROVEN IN PART": "plain"}


def page_of_certificate(document: Mapping[str, Any], name: str) -> Page:
    """Return the page of a certificate; `name` is the name of its file."""
    statement = document["statement"]
    verdict = str(statement["verdict"])
    tables = statement["tables"]
    signed_by = statement["signed_by"]
    previous = statement["previous"]
    return Page(
        title=f"Certificate {statement['number']}: {', '.join(table['table'] for table in tables)}",
        verdict=verdict,
        tone=_TONES.get(verdict, "trouble"),
        meaning=meaning_of(tables),
        facts={
            "issued (UTC)": moment(statement["issued_at"]),
            "by": f"trueup {statement['program']['version']}",
            "signed with the key": fingerprint(signed_by) if signed_by else "not signed",
            "verify with": f"trueup certificate verify {name} --key PUBLIC",
        },
        trouble=[
            *(f"{table['table']}: {table['reason']}" for table in tables if table["reason"]),
            *(f"{table['table']}: {limit}" for table in tables for limit in table["limits"]),
        ],
        trouble_title="Not everything is proven" if verdict == "VOID" else "Only a part is proven",
        remarks=[*statement["limits"], *(f"{each['table']}: {text}" for each in tables for text in notes_of(each))],
        tables=[
            Table(
                "Tables",
                ["table", "verdict", "how", "proven at (UTC)", "rows", "blocks", "judged until"],
                [_row(table) for table in tables],
                frozenset({4, 5}),
            ),
            Table(
                "Compared",
                ["table", "columns", "filter", "columns that were not compared"],
                [_part(each) for each in tables],
            ),
            Table(
                "Nodes",
                ["table", "node", "table on the node", "OID", "server and database", "timeline", "position"],
                [row for table in tables for row in _nodes(table)],
                frozenset({3, 5}),
            ),
        ],
        details=[
            Table(
                "Chain",
                [],
                [
                    ["id", str(statement["id"])],
                    ["chain", str(statement["chain"])],
                    ["number", str(statement["number"])],
                    ["SHA-256", str(document["sha256"])],
                    ["SHA-256 of the one before", str(previous["sha256"]) if previous else "none: it is the first"],
                    ["public key", str(signed_by or "not signed")],
                ],
            )
        ],
        report=name,
    )


def _part(table: Mapping[str, Any]) -> list[str]:
    compared = table.get("compared") or {}
    columns = ", ".join(str(column[0]) for column in compared.get("columns", ()))
    return [str(table["table"]), columns, str(compared.get("filter") or ""), ", ".join(compared.get("left_out", ()))]


def _row(table: Mapping[str, Any]) -> list[str]:
    blocks = table.get("blocks") or {}
    proven = table.get("proven_at")
    return [
        str(table["table"]),
        str(table["verdict"]),
        str(table.get("how") or ""),
        moment(proven) if proven else "",
        f"{table.get('rows', 0):,}",
        f"{blocks.get('count', 0):,}",
        str(table.get("judged_until") or ""),
    ]


def _nodes(table: Mapping[str, Any]) -> list[list[str]]:
    names = ("node", "table", "table_oid", "system", "timeline", "position")
    return [[str(table["table"]), *(str(node[name] or "") for name in names)] for node in table.get("nodes", ())]
