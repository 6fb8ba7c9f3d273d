"""
Files of certificates and private keys, in PEM form, and their renewal.

A file appears under its name with its whole content, on the disk, and a private key is never readable by others. No
existing file is replaced unless that is asked for.

The directory of an authority:

    ca.pem          its certificates, the newest first: what others name in `trust`
    ca.key          the key of the newest
    ca.cross.pem    where it has been renewed: the newer key signed by the older one, sent with what it signs

Where peers trust an authority, a certificate signed by it replaces the old one, and that is all. Where they trust the
certificate itself, they must have the new one first. So it can be *prepared*: it waits next to the old one, and both
are in a file to hand out. Later it replaces the old one, and peers that have that file trust it already:

    NAME.pem  NAME.key              in use
    NAME.next.pem  NAME.next.key    prepared
    NAME.trust.pem                  for peers that trust the certificate itself: the new one and the old one

A sealing key is renewed alone. The old one stays next to it, because frames sealed to it are still in transit. Where
all of a database's certificates are prepared, the new sealing key opens from then on: peers use it as soon as they have
it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from broker.errors import CertificateUnusableError
from broker.files import keep_names
from broker.security.identity import SigningKey, Use, is_signed_by, load_keys, load_pem, use_of, who_of
from broker.security.issue import (
    Authority,
    Issued,
    PrivateKey,
    Validity,
    certificates_pem,
    is_key_of,
    issue_database,
    issue_endpoint,
    issue_sealing,
)

FILE_MAX_BYTES = 4 * 1024 * 1024  # the bundle of every public CA is a tenth of it
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644  # before the umask
ROOTS, KEY, CROSS = "ca.pem", "ca.key", "ca.cross.pem"


class Content(NamedTuple):
    """The content that a file shall hold."""

    data: bytes
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of certificates and their keys; other names are made of that of `certificate`."""

    certificate: Path
    private_key: Path

    @property
    def prepared(self) -> Pair:
        """The prepared files that will replace these."""
        return Pair(
            *(path.with_name(f"{path.stem}.next{path.suffix}") for path in (self.certificate, self.private_key))
        )

    @property
    def bundle(self) -> Path:
        """The file for peers that trust the certificates themselves."""
        return self.certificate.with_name(f"{self.certificate.stem}.trust.pem")

    def files(self, issued: Issued) -> dict[Path, Content]:
        """Both, as `store_files` takes them."""
        return {
            self.private_key: Content(issued.key_pem, is_secret=True),
            self.certificate: Content(issued.certificate_pem),
        }


# --- files ---


def read_certificates(path: Path, setting: str = "certificate") -> list[x509.Certificate]:
    """
    The certificates of a file, at least one, in their order.

    Raises:
        CertificateUnusableError: it cannot be read, or holds none.
    """
    data = read_file(path, setting)
    try:
        found = load_pem(data)
        for one in found:  # each part is read when it is asked for, and later nothing catches its error
            who_of(one), one.issuer, one.not_valid_before_utc, one.not_valid_after_utc
    except ValueError:
        problem, hint = "holds no certificate in PEM form", "name a file with -----BEGIN CERTIFICATE----- in it"
        if b"-----BEGIN CERTIFICATE-----" in data:
            problem, hint = f"{problem} that can be read: it is cut off or damaged", "copy all of it again"
        elif b"PRIVATE KEY-----" in data:
            problem = "holds a private key and no certificate"
        raise CertificateUnusableError(setting, str(path), problem, hint) from None
    return found


def read_keys(path: Path) -> list[PrivateKey]:
    """
    The private keys of a file, at least one, in their order.

    Raises:
        CertificateUnusableError: it cannot be read, or holds none, or one of a kind that is not made here.
    """
    try:
        keys = load_keys(read_file(path))
    except ValueError as error:
        raise _unusable_key(path, f"holds a private key that cannot be read ({error})") from None
    for key in keys:
        if not isinstance(key, PrivateKey):
            problem = f"holds a key of another kind than those made here ({type(key).__name__.strip('_')})"
            raise _unusable_key(path, problem)
    if not keys:
        raise _unusable_key(path, "holds no private key in PEM form without a password")
    return [key for key in keys if isinstance(key, PrivateKey)]


def read_pair(pair: Pair) -> Issued:
    """
    Certificates and key of a pair.

    Raises:
        CertificateUnusableError: it cannot be read, or the keys are not those of the certificates.
    """
    certificates, keys = read_certificates(pair.certificate), read_keys(pair.private_key)
    if not is_key_of(keys[0], certificates[0]):
        raise _unusable_key(pair.private_key, f"does not begin with the key of {pair.certificate}")
    return Issued(tuple(certificates), tuple(keys))


def store_files(files: Mapping[Path, Content], *, is_replacing: bool) -> None:
    """
    Make files, all of them or, where one is there and may not be replaced, none.

    The directory is made where it is missing. The files of a pair are replaced one after the other, the first one named
    first: a reader at that moment finds a key that does not match the certificate, and reads them again.

    Raises:
        FileExistsError: one is there, and `is_replacing` is not said.
        OSError: the machine says no.
    """
    if not is_replacing:
        for path in files:
            if path.exists() or path.is_symlink():
                raise FileExistsError(17, "is there already", str(path))
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
                os.link(part, path)  # which, unlike a renaming, fails when another process has made it
                made.append(path)
    except BaseException:
        for path in made:
            path.unlink()
        raise
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    for directory in {path.parent for path in files}:
        keep_names(directory)


def _write(path: Path, content: Content, replaced: os.stat_result | None) -> None:
    """A new file. What it is to replace keeps its owner and mode: an instance has to be able to read it."""
    path.unlink(missing_ok=True)  # left by a process of this number that was killed
    mode = SECRET_MODE if content.is_secret else PUBLIC_MODE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        if replaced is not None:
            with suppress(PermissionError):  # only root gives files away
                os.fchown(file.fileno(), replaced.st_uid, replaced.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(replaced.st_mode))
        file.write(content.data)
        file.flush()
        os.fsync(file.fileno())


def _unusable_key(path: Path, problem: str) -> CertificateUnusableError:
    hint = "name the file that was made together with the certificate"
    return CertificateUnusableError("private_key", str(path), problem, hint)


def read_file(path: Path, setting: str = "certificate") -> bytes:
    """
    The content of a file of certificates or keys.

    Raises:
        CertificateUnusableError: it cannot be read, or is above 4 MiB.
    """
    hint = "name a file that exists and that the user of this process may read"
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise CertificateUnusableError(setting, str(path), problem, hint) from None
    if len(data) > FILE_MAX_BYTES:
        raise CertificateUnusableError(setting, str(path), "is above 4 MiB", "name a file with certificates only")
    return data


# --- an authority ---


def authority_files(authority: Authority, directory: Path) -> dict[Path, Content]:
    """The files of a directory, as `store_files` takes them."""
    files = Pair(directory / ROOTS, directory / KEY).files(Issued(authority.roots, (authority.key,)))
    if authority.cross_certificates:
        files[directory / CROSS] = Content(certificates_pem(authority.cross_certificates))
    return files


def read_authority(directory: Path) -> Authority:
    """
    The authority of a directory.

    Raises:
        CertificateUnusableError: there is none, or its files do not belong together.
    """
    roots = read_certificates(directory / ROOTS)
    [key, *_] = read_keys(directory / KEY)
    if not isinstance(key, EllipticCurvePrivateKey) or not is_key_of(key, roots[0]):
        problem = f"is not the key of the first certificate in {directory / ROOTS}"
        hint = "name the directory that broker certs init has made"
        raise CertificateUnusableError("private_key", str(directory / KEY), problem, hint)
    cross = read_certificates(directory / CROSS) if (directory / CROSS).exists() else []
    return Authority(tuple(roots), key, tuple(cross))


# --- renewal ---


def is_trusted_itself(issued: Issued) -> bool:
    """True if it is not signed by an authority, so that peers can only trust the certificate itself."""
    own = issued.certificates[0]
    return is_signed_by(own, own)


def renewed(old: Issued, validity: Validity, authority: Authority | None) -> Issued:
    """
    Return new certificates and keys of the same holder.

    Args:
        old: The certificates to renew, an endpoint's or a database's.
        validity: Of the new ones; ends with the authority's.
        authority: The signer; None for those that are signed by themselves.

    Raises:
        CertificateUnusableError: the authority is not the one that signed it.
    """
    own = old.certificates[0]
    if authority is not None and not any(is_signed_by(own, root) for root in authority.roots):
        issuer = own.issuer.rfc4514_string()
        problem, hint = f"is not signed by this authority but by {issuer}", "name the directory of that one with --ca"
        raise CertificateUnusableError("certificate", who_of(own).subject, problem, hint)
    issue = issue_database if use_of(own) is Use.SIGNING else issue_endpoint
    return issue(own, validity, authority)


def with_new_sealing(old: Issued, validity: Validity, *, now: datetime) -> Issued:
    """
    A database's certificates and keys with another one to seal to; older ones stay while they are valid at `now` (UTC).

    Raises:
        CertificateUnusableError: they are not a database's.
    """
    signing, key = old.certificates[0], old.keys[0]
    subject = who_of(signing).subject
    if use_of(signing) is not Use.SIGNING or isinstance(key, X25519PrivateKey):
        hint = "name the file that broker certs issue has made for a database"
        raise CertificateUnusableError("certificate", subject, "is not an identity of a database", hint)
    refuse_expired(signing, subject, now=now, hint="renew it as well, with --signing")
    assert isinstance(key, SigningKey)
    new = issue_sealing(signing, key, validity)
    others = [one for one in old.certificates if use_of(one) is not Use.SEALING]
    return with_sealing_of(Issued((*others, *new.certificates), (key, *new.keys)), old, now=now)


def with_sealing_of(own: Issued, other: Issued, *, now: datetime) -> Issued:
    """
    The one in use, with the sealing keys of the other that are valid at `now` (UTC); of an endpoint just the one.

    So a database opens what is sealed to the certificates that it has prepared, and to those that were replaced.
    """
    certificates = [
        one
        for one in other.certificates
        if use_of(one) is Use.SEALING and one.not_valid_after_utc > now and one not in own.certificates
    ]
    keys: list[PrivateKey] = [key for key in other.keys if any(is_key_of(key, one) for one in certificates)]
    return Issued((*own.certificates, *certificates), (*own.keys, *keys))


def refuse_expired(certificate: x509.Certificate, name: str, *, now: datetime, hint: str) -> None:
    """Raise CertificateUnusableError if it has expired at `now` (UTC), so that it can no longer sign."""
    ends = certificate.not_valid_after_utc
    if ends <= now:
        raise CertificateUnusableError("certificate", name, f"expired at {ends:%Y-%m-%d %H:%M:%S} UTC", hint)


def bundle_of(new: Issued, old: Issued, *, now: datetime) -> Content:
    """The content of `Pair.bundle`: the new certificates, and the old ones while they are valid."""
    own = [*_own(new), *(one for one in _own(old) if one.not_valid_after_utc > now)]
    return Content(certificates_pem(tuple(dict.fromkeys(own))))


def _own(issued: Issued) -> list[x509.Certificate]:
    """The holder's own, without those of an authority."""
    return [one for one in issued.certificates if use_of(one) is not Use.AUTHORITY]
