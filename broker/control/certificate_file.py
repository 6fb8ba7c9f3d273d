"""
Files of certificates and private keys, in PEM form: read whole, and made whole.

A file appears under its name with all that is in it, on the disk, and nobody but its owner could read a private key at
any time before. Nothing that is there is replaced unless that is asked for.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509

from broker.errors import CertificateUnusableError
from broker.security.certificate import load_pem

if TYPE_CHECKING:
    from broker.security.issue import PrivateKey

FILE_MAX_BYTES = 4 * 1024 * 1024  # the bundle of every public CA is a tenth of it
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644  # before the umask
_PRIVATE = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----.+?-----END (?:[A-Z]+ )?PRIVATE KEY-----", re.DOTALL)


class Content(NamedTuple):
    """What a file shall hold."""

    data: bytes
    is_secret: bool = False


def read_certificates(path: Path) -> list[x509.Certificate]:
    """
    The certificates of a file, at least one, in their order.

    Raises:
        CertificateUnusableError: it cannot be read, or holds none.
    """
    data = _read(path)
    try:
        return load_pem(data)
    except ValueError as error:
        problem = f"holds no certificate in PEM form that can be read ({error})"
        if _PRIVATE.search(data):
            problem = "holds a private key and no certificate"
        hint = "name a file with -----BEGIN CERTIFICATE----- in it"
        raise CertificateUnusableError("certificate", str(path), problem, hint) from None


def read_keys(path: Path) -> list[PrivateKey]:
    """
    The private keys of a file, at least one, in their order.

    Raises:
        CertificateUnusableError: it cannot be read, or holds none, or one of a kind that is not made here.
    """
    # See the docstring of broker.cli.group: who shows certificates needs none of it.
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    found: list[PrivateKey] = []
    hint = "name the file that was made together with the certificate"
    for text in _PRIVATE.findall(_read(path)):
        try:
            key = load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            problem = f"holds a private key that cannot be read ({error})"
            raise CertificateUnusableError("private_key", str(path), problem, hint) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | x25519.X25519PrivateKey):
            problem = f"holds a key of another kind than those made here ({type(key).__name__.strip('_')})"
            raise CertificateUnusableError("private_key", str(path), problem, hint)
        found.append(key)
    if not found:
        problem = "holds no private key in PEM form without a password"
        raise CertificateUnusableError("private_key", str(path), problem, hint)
    return found


def store_files(files: Mapping[Path, Content], *, is_replacing: bool) -> None:
    """
    Make files, all of them or, where one is there and may not be replaced, none.

    The directory is made where it is missing. The files of a pair are replaced one after the other, the first one named
    first: whoever reads them in that moment finds a key that is not that of the certificate, and reads them again.

    Raises:
        FileExistsError: one is there, and `is_replacing` is not said.
        OSError: the machine says no.
    """
    if not is_replacing:
        for path in files:
            _refuse_existing(path)
    made: list[Path] = []
    parts: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path] = path.with_name(f".{path.name}.{os.getpid()}.part")
            _write(parts[path], content, path.stat() if is_replacing and path.exists() else None)
        for path, part in parts.items():
            if is_replacing:
                part.replace(path)
            else:
                os.link(part, path)  # which, unlike a renaming, fails when somebody has made it meanwhile
                made.append(path)
    except BaseException:
        for path in made:
            path.unlink()
        raise
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    for directory in {path.parent for path in files}:
        _sync(directory)


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise FileExistsError(17, "is there already", str(path))


def _write(path: Path, content: Content, replaced: os.stat_result | None) -> None:
    """A new file. What it is to replace keeps its owner and mode: an instance has to be able to read it."""
    path.unlink(missing_ok=True)  # left behind by a process of this number that was killed
    mode = SECRET_MODE if content.is_secret else PUBLIC_MODE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        if replaced is not None:
            with suppress(PermissionError):  # only root gives files away
                os.fchown(file.fileno(), replaced.st_uid, replaced.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(replaced.st_mode))
        file.write(content.data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> bytes:
    hint = "name a file that exists and that you may read"
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise CertificateUnusableError("certificate", str(path), problem, hint) from None
    if len(data) > FILE_MAX_BYTES:
        problem = "is above 4 MiB"
        raise CertificateUnusableError("certificate", str(path), problem, "name a file with certificates only")
    return data
