"""Reads a libpq connection string and says what is wrong with it without ever quoting from it."""

from __future__ import annotations

import re

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

from trueup.config.secrets import mask

_ANY_URI = r"[a-zA-Z][a-zA-Z0-9+.\-]*://"
_LIBPQ_URI = r"postgres(?:ql)?://"

_ENCODE = (
    "the user or the password of the address holds a character that must be percent-encoded "
    "(@ as %40, / as %2F, : as %3A, ? as %3F, # as %23, % as %25, a space as %20)"
)

# libpq's messages quote from the string, so they are recognised by how they begin and said in our own words.
_REASONS = {
    "invalid percent-encoded token": "a % is not followed by two hex digits (a plain % is written %25)",
    "forbidden value": "it holds %00",
    "unexpected spaces": "it holds a space (a space is written %20)",
    "missing key/value separator": 'what follows the "?" is not of the form key=value',
    "extra key/value separator": 'what follows the "?" is not of the form key=value&key=value',
    "invalid URI query parameter": 'what follows the "?" holds a keyword that libpq does not know',
    "invalid connection option": "it holds a keyword that libpq does not know",
    "unterminated quoted string": "a quote is not closed",
    'missing "="': "a part of it is not of the form keyword=value (a value with spaces needs single quotes)",
    "end of string reached": 'the "]" of an IPv6 address is missing',
    "IPv6 host address": "the IPv6 address is empty",
    "unexpected character": 'after the "]" of an IPv6 address comes neither a port nor a database',
}


def parse(conninfo: str) -> tuple[dict[str, str], str]:
    """The libpq keywords of a conninfo, and what is wrong with it ("" if nothing); one of the two is empty.

    Also refuses what libpq would accept but the writer cannot have meant: in `postgresql://u:a@b@host/db`
    libpq takes "a" for the password and "b@host" for the host, and asks the name server for half a password.
    """
    if not conninfo.strip():
        return {}, "it is empty"
    if "\0" in conninfo:
        return {}, "it holds a NUL character"
    # psycopg loads libpq, which costs more time than `trueup --help` may take.

    try:
        params = {keyword: str(value) for keyword, value in conninfo_to_dict(conninfo).items()}
    except UnicodeError:
        return {}, "it is not UTF-8"
    except Error as error:
        return {}, _reason(conninfo, str(error))
    wrong = _misread(conninfo) or _bad_port(params)
    return ({}, wrong) if wrong else (params, "")


def join(keywords: dict[str, str]) -> str:
    """A conninfo string from libpq keywords."""
    return " ".join(f"{keyword}={_quoted(value)}" for keyword, value in keywords.items())


def known_keywords() -> tuple[str, ...]:
    """All keywords of the libpq in use."""
    return tuple(option.keyword.decode() for option in pq.Conninfo.parse(b""))


def describe(conninfo: str) -> str:
    """Where a conninfo leads, as `user@host:port/dbname`, from what it says itself; never a password."""
    params, wrong = parse(conninfo)
    if wrong:
        return "unreadable address"
    hosts = (params.get("host") or params.get("hostaddr") or "").split(",")
    ports = params.get("port", "").split(",")
    # libpq's rule: one port serves all hosts, otherwise there is one port for each.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    text = ",".join(places)
    if not text and "service" in params:
        text = f"service={params['service']}"
    if "user" in params:
        text = f"{params['user']}@{text}"
    if "dbname" in params:
        text = f"{text}/{params['dbname']}"
    return mask(text) or "libpq defaults"


def _quoted(value: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_.:/\-]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _reason(conninfo: str, libpq_message: str) -> str:
    if re.match(_ANY_URI, conninfo) and not re.match(_LIBPQ_URI, conninfo):
        return "it must begin with postgresql:// or consist of libpq keywords (host=... dbname=...)"
    for beginning, reason in _REASONS.items():
        if libpq_message.startswith(beginning):
            return reason
    return "libpq cannot read it"


def _misread(conninfo: str) -> str:
    """What is wrong with a URI in which an unquoted "@" or "/" moved part of the password elsewhere."""
    scheme = re.match(_LIBPQ_URI, conninfo)
    if not scheme:
        return ""
    authority, _, rest = conninfo[scheme.end() :].partition("/")
    path = rest.partition("?")[0]
    behind = path if "@" in authority else rest
    return _ENCODE if authority.count("@") > 1 or "@" in behind else ""


def _bad_port(params: dict[str, str]) -> str:
    ports = params.get("port", "").split(",")
    if all(not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65536) for port in ports):
        return ""
    return f"the port is not a number from 1 to 65535, or {_ENCODE}"
