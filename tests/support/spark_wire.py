"""What another user of the machine can send to the ports of a Spark: requests of its protocol, without a secret."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

import psutil

_RPC_REQUEST, _RPC_RESPONSE, _RPC_FAILURE = 3, 4, 5
_SECONDS = 2.0


def listening_ports(pid: int) -> list[int]:
    """Return the ports on which a process accepts connections."""
    found = psutil.Process(pid).net_connections("tcp")
    return sorted({each.laddr.port for each in found if each.status == psutil.CONN_LISTEN})


def request_block(port: int, block: str) -> tuple[int, bytes]:
    """Ask for a block; return the kind and the body of the answer, (0, b"") if there is none."""
    names = [b"app", b"driver"]
    body = b"\0" + b"".join(map(_sized, names)) + struct.pack(">i", 1) + _sized(block.encode())
    return _rpc(port, body)


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _rpc(port: int, body: bytes) -> tuple[int, bytes]:
    frame = struct.pack(">qbqi", 21 + len(body), _RPC_REQUEST, 1, len(body)) + body
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as connection:
        # The newline is for PySpark, which reads lines.
        connection.sendall(frame + b"\n")
        file: Any = connection.makefile("rb")
        head = file.read(9)
        if len(head) == 9:
            size, kind = struct.unpack(">qb", head)
            # Another protocol has no size there.
            return (kind, file.read(size - 9)) if size < 2**24 else (0, head)
    return 0, b""


def is_served(answer: tuple[int, bytes]) -> bool:
    """Whether Spark has looked at a request, not only at who sent it."""
    kind, body = answer
    return kind == _RPC_RESPONSE or (kind == _RPC_FAILURE and b"SaslMessage" not in body)
