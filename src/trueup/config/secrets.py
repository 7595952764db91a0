"""Find and mask passwords and tokens in connection strings and in texts that contain them."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
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
_NEXT_URI = rf"(?a)(?=\s\W?{_SCHEME}|\n)"
_PORT = r"(?a)\d+(?=[/?,;'\"\s]|$)"
_AT_HOST = r"(?a)@[^\s@/:?]*(?::\d|/)"

_NAMES = (
    r"(?:password|passwd|passphrase|pwd|token|secret(?:[._]key)?|scram_(?:client|server)_key|authorization"
    r"|(?:api|access|account|private)[._-]?key)"
)
_ASSIGNED = rf"(?ai)(?P<lead>[?&;](?:ssl|oauth_client_)?)?{_NAMES}[\"']?\s*=\s*"
_IN_DICT = rf"(?ai){_NAMES}[\"']\s*:\s*"
# `password: x`, as in YAML. After the path of a setting (nodes.n1.password) an explanation may follow: then only a
# single word at the end of its line or entry is a value.
_IN_YAML = rf"(?ai)(?<![\w.]){_NAMES}:[ \t]+"
_SETTING_IN_YAML = rf"(?ai)(?<=[\w.]){_NAMES}:[ \t]+(?=[^\s,}}]+[ \t]*(?:[\r\n,}}]|$))"
# Signatures in the query of a URI, which has the rights of its signer.
_SIGNATURE = r"(?ai)(?P<lead>[?&])(?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))="
# A token in place of a user, without a password; in a URI of a database this is the name of a role.
_TOKEN_OF_URI = r"(?ai)(?:(?<=http://)|(?<=https://))[^\s/?#@:]+(?=@)"
# A header of HTTP: the value ends with the line, or with the quote around the header.
_HEADER = r"(?ai)(?:authorization|[\w-]{0,30}(?:-key|-token)|cookie)\s*:[ \t]*"
_BEARER = r"(?ai)\bbearer[ \t]+(?=\S*\d)"

# Ends of values. A backslash escapes the next character, so escape sequences are skipped.
_BLANK = r"(?as)\\.|(\s)"
_SINGLE_QUOTE = r"(?as)\\.|(')"
# libpq has no double quotes, so the value may continue after them.
_DOUBLE_QUOTE = r'(?as)\\.|(["\n])'
_AMPERSAND = r"(?a)([&\s])"
_SEMICOLON = r"(?a)([;\s])"
_END_IN_YAML = r"(?a)([\s,;}])"
_END_OF_HEADER = r"([\r\n\"'])"


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
    # Not in `find_secrets`: a file with the name of a user in an address contains no password.
    spans = [*_spans(text), *(match.span() for match in re.finditer(_TOKEN_OF_URI, text))]
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
    from trueup.config.address import POSTGRESQL, parse

    if node.kind != POSTGRESQL:
        return tuple(map(_unquoted, find_secrets(node.conninfo)))
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


class _Positions:
    """The positions at which patterns match in a text, found once per pattern: no part of a text is searched twice.

    A text that an attacker chose, for example a refused row, may contain thousands of places that look like a URI.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[str, list[int]] = {}

    def next(self, pattern: str, start: int) -> int:
        """Return the first position of the group of the pattern from `start` on; the end of the text if none."""
        found = self._of(pattern)
        index = bisect_left(found, start)
        return found[index] if index < len(found) else len(self.text)

    def last(self, pattern: str, start: int, end: int) -> int:
        """Return the last position of the group of the pattern from `start` to before `end`; -1 if none."""
        found = self._of(pattern)
        index = bisect_left(found, end) - 1
        return found[index] if index >= 0 and found[index] >= start else -1

    def _of(self, pattern: str) -> list[int]:
        if pattern not in self._found:
            matches = re.finditer(pattern, self.text)
            group = re.compile(pattern).groups
            self._found[pattern] = [match.start(group) for match in matches if match.start(group) >= 0]
        return self._found[pattern]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each password that the context identifies; spans may overlap."""
    positions = _Positions(text)
    done, last_at = 0, text.rfind("@")
    for user in re.finditer(_USER_OF_URI, text):
        # Skip what is inside a previous match or has no end.
        if done <= user.end() < last_at:
            done = _end_of_uri_password(positions, user.end())
            if done > user.end():
                yield user.end(), done
    named = (re.finditer(pattern, text) for pattern in (_ASSIGNED, _IN_DICT, _SIGNATURE))
    for name in (match for matches in named for match in matches):
        end = _end_of_value(positions, name.end(), name.groupdict().get("lead") or "")
        if end > name.end():
            yield name.end(), end
    for entry in [*re.finditer(_IN_YAML, text), *re.finditer(_SETTING_IN_YAML, text)]:
        is_quoted = text.startswith(("'", '"'), entry.end())
        end = _end_of_value(positions, entry.end(), "") if is_quoted else positions.next(_END_IN_YAML, entry.end())
        if end > entry.end():
            yield entry.end(), end
    for header in [*re.finditer(_HEADER, text), *re.finditer(_BEARER, text)]:
        end = positions.next(_END_OF_HEADER if ":" in header.group() else _BLANK, header.end())
        if end > header.end():
            yield header.end(), end


def _end_of_uri_password(positions: _Positions, start: int) -> int:
    """Return the position of the "@" that ends the password (the last possible one), or -1."""
    limit = positions.next(_NEXT_URI, start)
    blank = positions.next(r"(?a)\s", start)
    position = positions.last("@", start, min(blank, limit))
    if position < 0 and re.compile(_PORT).match(positions.text, start):
        return -1
    # After a blank, only "@host/" or "@host:5432" counts: the text may continue with a user bob@corp.
    later = positions.last(_AT_HOST, max(position, start), limit)
    if position < 0 and later < 0:
        return positions.last("@", start, limit)
    return max(position, later)


def _end_of_value(positions: _Positions, start: int, lead: str) -> int:
    """Return the end of the value that starts here: in a conninfo, in the query of a URI, or quoted."""
    text = positions.text
    if lead:
        return positions.next(_SEMICOLON if lead.startswith(";") else _AMPERSAND, start)
    if text.startswith("'", start):
        closing = positions.next(_SINGLE_QUOTE, start + 1)
        return positions.next(_BLANK, closing + 1)
    if text.startswith('"', start):
        closing = positions.next(_DOUBLE_QUOTE, start + 1)
        if text.startswith('"', closing):
            return positions.next(_BLANK, closing + 1)
    return positions.next(_BLANK, start)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
