"""The document of a certificate: what is hashed and signed, and the bytes of its file.

The canonical form of a statement is JSON in ASCII (other characters are escaped), without blanks, with the names of
each object sorted by code points, and without fractions: numbers are integers. What is hashed and signed is the line
`trueup certificate 1`, a line feed, and the canonical form. The file has the same content indented by one blank per
level, with sorted names and a line feed at the end; a file with any other byte is not a certificate of trueup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from trueup.errors import StoreError

FORMAT = "trueup certificate 1"
# A certificate lists tables, not rows.
_MAX_BYTES = 100_000_000


def canonical(statement: Mapping[str, Any]) -> bytes:
    """Return the bytes that are hashed and signed."""
    _check(statement)
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"{FORMAT}\n{text}".encode("ascii")


def hash_of(statement: Mapping[str, Any]) -> str:
    """Return the hash of a statement, by which the next one of the chain refers to it."""
    return sha256(canonical(statement)).hexdigest()


def file_text(document: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def read_document(path: Path) -> tuple[dict[str, Any], str]:
    """Return the document of a file, and why its bytes are not those that trueup wrote ("" if they are).

    Raises StoreError if the file cannot be read, or is no certificate.
    """
    cure = "give a file that trueup certificate wrote"
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", cure="check the path") from None
    if len(content) > _MAX_BYTES:
        raise StoreError(f"{path} is too large for a certificate", cure=cure)
    try:
        document = json.loads(content)
        if document["statement"]["format"] != FORMAT:
            raise KeyError("format")
        # Only what is signed, and the signature: a member beside them would be unsigned.
        document = _of_parts(document)
        written = file_text(document).encode("ascii")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StoreError(f"{path} is not a certificate, or is damaged", cure=cure) from None
    return document, "" if written == content else "its bytes are not those that were written"


def _of_parts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of the parts that trueup writes."""
    document = {name: found[name] for name in ("statement", "sha256")}
    if "signature" in found:
        document["signature"] = {name: found["signature"][name] for name in ("algorithm", "public_key", "value")}
    return document


def _check(value: Any) -> None:
    """Raise TypeError for a value whose canonical form is not unique: a fraction, or a name that is not text."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("names of a statement are texts")
        for part in value.values():
            _check(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check(part)
    elif value is not None and not isinstance(value, str | int):
        raise TypeError(f"a statement has no values of the type {type(value).__name__}")
