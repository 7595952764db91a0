"""Find and mask passwords and tokens in connection strings and in texts that contain them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from trueup.config.model import Node

MASK = "***"

# Keywords of libpq that it marks as secret, or that replace the password.
SECRET_KEYWORDS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

# A shorter secret would match parts of ordinary words.
SHORTEST_SECRET = 3

# (?a): only ASCII blanks separate, as in libpq; a Unicode blank may be part of a password.
# Patterns are compiled (and cached by re) on first use, which saves a tenth of the import time.
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.\-]{0,30}://"
# "scheme://user:", directly followed by the password. The user may contain an unquoted "@" (bob@corp).
_USER_OF_URI = rf"(?a){_SCHEME}[^\s:]*:(?=\S)"
# A badly quoted password ends at the latest where the next URI starts.
_NEXT_URI = rf"(?a)\s\W?{_SCHEME}|\n"
_PORT = r"(?a)\d+(?=[/?,;'\"\s]|$)"
_AT_HOST = r"(?a)@[^\s@/:?]*(?::\d|/)"

_NAMES = r"(?:password|passwd|token|secret(?:[._]key)?|scram_(?:client|server)_key)"
_ASSIGNED = rf"(?ai)(?P<lead>[?&;](?:ssl|oauth_client_)?)?{_NAMES}[\"']?\s*=\s*"
_IN_DICT = rf"(?ai){_NAMES}[\"']\s*:\s*"
_SINGLE_QUOTED = r"(?as)'(?:\\.|[^'\\])*(?:'(?:\\.|[^\s\\])*|\\?\Z)"
# libpq has no double quotes, so the value may continue after them.
_DOUBLE_QUOTED = r'(?as)"(?:\\.|[^"\\\n])*"(?:\\.|[^\s\\])*'
_BARE = r"(?as)(?:\\.|[^\s\\])*"
_UP_TO_AMPERSAND = r"(?a)[^&\s]*"
_UP_TO_SEMICOLON = r"(?a)[^;\s]*"


class Conninfo(str):
    """A connection string whose repr does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<conninfo {MASK}>"


def mask(text: str, *secrets: str) -> str:
    """Return the text with passwords in URIs and keyword=value pairs, and the given secrets, replaced by ***.

    Given secrets are also found percent-encoded, escaped for libpq, and as Python's repr. Secrets of one or two
    characters are only masked where a URI or a keyword identifies them as a password.
    """
    spans = [*_spans(text)]
    for form in {form for secret in secrets for form in _forms(secret)}:
        if len(form) >= SHORTEST_SECRET:
            spans += [(match.start(), match.end()) for match in re.finditer(re.escape(form), text)]
    pieces: list[str] = []
    done = 0
    for start, end in _merged(spans):
        pieces += [text[done:start], MASK]
        done = end
    return "".join([*pieces, text[done:]])


def find_secrets(text: str) -> tuple[str, ...]:
    """Return the passwords in a text, as written there, recognised by their context."""
    return tuple(text[start:end] for start, end in _spans(text))


def secrets_of(node: Node) -> tuple[str, ...]:
    """Return the passwords in the conninfo of a node, decoded and as written; for `mask(text, *secrets_of(node))`."""
    from trueup.config.address import parse

    params, wrong = parse(node.conninfo)
    decoded = [params[keyword] for keyword in SECRET_KEYWORDS if params.get(keyword)]
    written = [*map(_unquoted, find_secrets(node.conninfo))]
    # If libpq cannot parse it, the position of the password is unknown: the whole text is secret.
    unclear = [str(node.conninfo)] if wrong else []
    return tuple(dict.fromkeys([*decoded, *written, *unclear]))


def _unquoted(written: str) -> str:
    closed = len(written) > 1 and written[0] in "'\"" and written[-1] == written[0]
    return written[1:-1] if closed else written


def _forms(secret: str) -> set[str]:
    """Return the forms in which a secret may appear in a text."""
    encodable = secret.encode("utf-8", "surrogatepass")
    return {
        secret,
        quote(encodable),
        quote(encodable, safe=""),
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        secret.replace("\\", "\\\\").replace("'", "\\'"),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    }


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each password that the context identifies; spans may overlap."""
    done, last_at = 0, text.rfind("@")
    for user in re.finditer(_USER_OF_URI, text):
        # Skip what is inside a previous match or has no end; otherwise a long text would take minutes.
        if done <= user.end() < last_at:
            done = _end_of_uri_password(text, user.end())
            if done > user.end():
                yield user.end(), done
    for name in [*re.finditer(_ASSIGNED, text), *re.finditer(_IN_DICT, text)]:
        end = _end_of_value(text, name.end(), name.groupdict().get("lead") or "")
        if end > name.end():
            yield name.end(), end


def _end_of_uri_password(text: str, start: int) -> int:
    """Return the position of the "@" that ends the password (the last possible one), or -1."""
    next_uri = re.compile(_NEXT_URI).search(text, start)
    limit = next_uri.start() if next_uri else len(text)
    blank = re.compile(r"(?a)\s").search(text, start, limit)
    position = text.rfind("@", start, blank.start() if blank else limit)
    if position < 0 and re.compile(_PORT).match(text, start):
        return -1
    # After a blank, only "@host/" or "@host:5432" counts: the text may continue with a user bob@corp.
    later = [match.start() for match in re.compile(_AT_HOST).finditer(text, max(position, start), limit)]
    if position < 0 and not later:
        return text.rfind("@", start, limit)
    return max([position, *later])


def _end_of_value(text: str, start: int, lead: str) -> int:
    """Return the end of the value that starts here: in a conninfo, in the query of a URI, or quoted."""
    if lead:
        pattern = _UP_TO_SEMICOLON if lead.startswith(";") else _UP_TO_AMPERSAND
    elif text.startswith("'", start):
        pattern = _SINGLE_QUOTED
    elif re.compile(_DOUBLE_QUOTED).match(text, start):
        pattern = _DOUBLE_QUOTED
    else:
        pattern = _BARE
    match = re.compile(pattern).match(text, start)
    return match.end() if match else start


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
