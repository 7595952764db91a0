"""Metrics of a command that ends: a file for node_exporter, or a push gateway."""

from __future__ import annotations

import os
import socket
from base64 import b64encode
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from trueup.config.files import PartFile
from trueup.config.model import Config
from trueup.config.secrets import mask
from trueup.config.transport import sends_login_openly
from trueup.errors import ConfigError, StoreError
from trueup.serve.metrics import CONTENT_TYPE, metrics_text
from trueup.serve.model import Part, Seen
from trueup.serve.sources import read_store

_SECONDS = 5.0


def store_metrics(path: Path, config: Config) -> bytes:
    """Return the metrics of a task store that stay true after the command has ended: no ages."""
    part = Part(str(path), read_store(path))
    return metrics_text(Seen(stores={path: part}), config, is_lasting=False)


def write_textfile(path: Path, text: bytes) -> None:
    """Replace the file at once; node_exporter, which is another user, may read it."""
    part = None
    try:
        part = PartFile(path)
        part.file.write(text)
        part.keep()
        os.chmod(path, 0o644)
    except OSError as error:
        message = f"cannot write the metrics to {path}: {error.strerror}"
        raise StoreError(message, cure="use a path in the textfile folder of node_exporter") from None
    finally:
        if part is not None:
            part.discard()


def with_login(address: str) -> tuple[str, dict[str, str]]:
    """Return an address of HTTP without user and password, and the header that sends them."""
    split = urlsplit(address)
    if "@" not in split.netloc:
        return address, {}
    login = f"{unquote(split.username or '')}:{unquote(split.password or '')}"
    bare = split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()
    return bare, {"authorization": f"Basic {b64encode(login.encode()).decode()}"}


def push_metrics(address: str, text: bytes) -> None:
    """Replace the metrics of this machine on a push gateway."""
    split = urlsplit(address)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise ConfigError("--metrics-push: not an address of HTTP", cure="write http://host:9091")
    if sends_login_openly(address):
        raise ConfigError("--metrics-push: the log-in would be sent unencrypted", cure="use an address with https://")
    bare, headers = with_login(address)
    where = f"{bare.rstrip('/')}/metrics/job/trueup/instance/{quote(socket.gethostname(), safe='')}"
    request = Request(where, text, {**headers, "content-type": CONTENT_TYPE}, method="PUT")
    try:
        with urlopen(request, timeout=_SECONDS) as answer:
            answer.read(1000)
    except (OSError, URLError, HTTPException) as error:
        message = f"cannot send the metrics to {split.hostname}: {mask(str(error))}"
        raise StoreError(message, cure="check the address and the push gateway") from None
