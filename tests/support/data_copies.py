"""Data folders of servers, copied from one that initdb created: an eighth of the processor time of initdb."""

from __future__ import annotations

import secrets
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from trueup.testing import postgres
from trueup.testing.account import Account
from trueup.testing.binaries import return_copy
from trueup.testing.postgres import Server

_initialize = postgres.initialize
# Servers that are stopped: their folders are removed at the end of this process, as those of all servers.
_originals: dict[Path, Server] = {}

_NAME = "original"
# XLogLongPageHeaderData: the identifier of the server in the first page of a segment of the log.
_IDENTIFIER_IN_LOG = 24


def copy_data_folders() -> None:
    """Let all servers that this process starts copy their data folder; those with another password run initdb."""
    postgres.initialize = _initialize_by_copying


def _initialize_by_copying(server: Server, account: Account) -> None:
    if server.name == _NAME or server.password != postgres.PASSWORD:
        _initialize(server, account)
        return
    original = _originals.get(server.bin_dir)
    if original is None:
        original = Server.start(name=_NAME, bin_dir=server.bin_dir)
        original.stop()
        # What VACUUM adds to tables is a quarter of the files of each new database.
        for path in (original.data_dir / "base").glob("*/*_[fv]*m"):
            path.unlink()
        if original.bin_copy is not None:
            # It needs the copy of its programs no longer; the other servers share it.
            return_copy(original.bin_copy, original.bin_dir, original.data_dir)
            original.bin_copy = None
        _originals[server.bin_dir] = original
    subprocess.run(["cp", "-a", f"{original.data_dir}/.", str(server.data_dir)], check=True)
    hba = "pg_hba.conf"
    (server.data_dir.parent / hba).write_bytes((original.data_dir.parent / hba).read_bytes())
    (server.data_dir.parent / hba).chmod(0o644)
    _change_identifier(server.data_dir)


def _change_identifier(data_dir: Path) -> None:
    """Give a copy an identifier of its own, as initdb does: trueup recognizes a server by it."""
    identifier = struct.pack("=Q", secrets.randbits(63))
    control = data_dir / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    # Where the checksum of everything before it is depends on the version of PostgreSQL.
    end = next(end for end, checksum in _checksums(content) if content[end : end + 4] == checksum)
    content[:8] = identifier
    content[end : end + 4] = dict(_checksums(content))[end]
    control.write_bytes(content)
    for segment in (data_dir / "pg_wal").iterdir():
        if segment.is_file() and len(segment.name) == 24:
            with segment.open("r+b") as file:
                file.seek(_IDENTIFIER_IN_LOG)
                file.write(identifier)


def _checksums(content: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield positions, each with the CRC-32C of everything before it."""
    crc = 0xFFFFFFFF
    for position, byte in enumerate(content[:512]):
        yield position, struct.pack("=I", crc ^ 0xFFFFFFFF)
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
