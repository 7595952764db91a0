"""Certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NAMES = {"server": "DNS:localhost", "node": "IP:127.0.0.1", "elsewhere": "DNS:elsewhere"}


def make_certificates(folder: Path) -> Path:
    """Create an authority (ca.pem), another one (other.pem), certificates for three names, and their key (server.key).

    Returns the folder.
    """
    authority = "-x509 -nodes -newkey rsa:2048 -days 2 -addext keyUsage=critical,keyCertSign"
    commands = [
        f"req {authority} -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {authority} -subj /CN=other -keyout other.key -out other.pem",
        "req -nodes -newkey rsa:2048 -subj /CN=localhost -keyout server.key -out server.csr",
    ]
    signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
    for file, name in _NAMES.items():
        (folder / f"{file}.ext").write_text(
            f"subjectAltName={name}\nauthorityKeyIdentifier=keyid\nbasicConstraints=CA:false\n", encoding="utf-8"
        )
        commands.append(f"x509 -req -in server.csr {signed} -extfile {file}.ext -out {file}.pem")
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder
