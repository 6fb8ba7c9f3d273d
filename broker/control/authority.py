"""
The directory of an authority: its certificates, its key, and what leads from its key to its older ones.

    ca.pem          its certificates, the newest first: what others name in `trust`
    ca.key          the key of the newest
    ca.cross.pem    where it has been renewed: the newer key signed by the older one, sent with what it signs
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from broker.control.certificate_file import Content, read_certificates, read_keys
from broker.errors import CertificateUnusableError
from broker.security.issue import Authority, certificates_pem, is_key_of, keys_pem

ROOTS, KEY, CROSS = "ca.pem", "ca.key", "ca.cross.pem"


def authority_files(authority: Authority, directory: Path) -> dict[Path, Content]:
    """The files of a directory, as `store_files` takes them."""
    files = {
        directory / KEY: Content(keys_pem((authority.key,)), is_secret=True),
        directory / ROOTS: Content(certificates_pem(authority.roots)),
    }
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
