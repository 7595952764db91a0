"""Ed25519 keys: make a pair, sign, verify. Needs the package `cryptography` (trueup[sign])."""

from __future__ import annotations

import os
import re
import stat
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.config.files import PartFile
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "Ed25519"
# A key has about 120 bytes.
_MAX_BYTES = 10_000
# 128 bits: another key with the same fingerprint cannot be found.
_FINGERPRINT_DIGITS = 32


def make_pair(path: Path) -> Path:
    """Write a private key, and beside it the public key with the ending .pub; return the path of the public key.

    Both can be read by their owner only. Raises ConfigError if one of the files exists: a key is never replaced.
    """
    need_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = path.with_name(f"{path.name}.pub")
    for each in (path, public):
        if each.exists() or each.is_symlink():
            raise ConfigError(f"{each} exists", cure="choose another name: a key is never replaced")
    key = Ed25519PrivateKey.generate()
    _write_new(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    _write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return public


def _write_new(path: Path, content: bytes) -> None:
    try:
        part = PartFile(path)
        try:
            part.file.write(content)
            part.keep(new=True)
        finally:
            part.discard()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", cure="choose another file or folder") from None


def read_private(path: Path) -> Ed25519PrivateKey:
    """Return the private key of a file. Raises ConfigError if other users can read it, or it is no such key."""
    need_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read_private_file(path), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        # The content is not part of the message: it may be a key of another program.
        cure = "make a pair with: trueup certificate keygen --output FILE"
        raise ConfigError(f"{path} is not a private key of {ALGORITHM} without a password", cure=cure)
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """Return the public key of a file. Raises ConfigError if it is none."""
    need_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        content = path.read_bytes()[:_MAX_BYTES]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", cure="check the path") from None
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is not a public key of {ALGORITHM}", cure="give the file that ends with .pub")
    return key


def public_text(key: Ed25519PublicKey) -> str:
    """Return the 32 bytes of a public key in hexadecimal digits."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def fingerprint(public: str) -> str:
    """Return a short name of a public key, for people and programs to compare."""
    return sha256(bytes.fromhex(public)).hexdigest()[:_FINGERPRINT_DIGITS]


def is_fingerprint(text: str) -> bool:
    """Return whether a text may be the fingerprint of a key."""
    return re.fullmatch(f"[0-9a-f]{{{_FINGERPRINT_DIGITS}}}", text) is not None


def is_signed(public: str, signature: str, content: bytes) -> bool:
    """Return whether a signature, in hexadecimal digits, is that of the content by this key."""
    need_library()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = bytes.fromhex(signature)
        # Digits in capitals, or blanks between them, are other bytes of the file.
        if raw.hex() != signature or bytes.fromhex(public).hex() != public:
            return False
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(raw, content)
    except (ValueError, InvalidSignature):
        return False
    return True


def need_library() -> None:
    """Raise ConfigError if the package that signs is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError("signatures need the package cryptography", cure="pip install 'trueup[sign]'") from None


def _read_private_file(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}", cure="check the path") from None
    with open(descriptor, "rb") as file:
        # Of the file that is open: another one may have its name by now.
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigError(f"the key {path} is not a regular file", cure="give the path of a file")
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            raise ConfigError(
                f"other users can read or write the key {path} (mode {mode:03o})",
                cure=f"chmod 600 {path}; if others could have read it, make a new key",
            )
        if facts.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"the key {path} belongs to another user", cure="use a key of your own")
        return file.read(_MAX_BYTES)
