"""
Reading certificates of whomever: whatever is wrong with one is a ValueError.

The library has errors of its own for some of what may stand in one, and looks at most parts only when they are asked
for. Nobody who reads a certificate from elsewhere has to know them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

_UNREAD = (x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, UnsupportedAlgorithm)


@contextmanager
def reading() -> Iterator[None]:
    """In this block, certificates of whomever are looked at; raises ValueError for one that cannot be."""
    try:
        yield
    except _UNREAD as error:
        raise ValueError(f"a certificate cannot be read: {error}") from None


def load_pem(data: bytes) -> list[x509.Certificate]:
    """The certificates in a text, at least one; raises ValueError."""
    with reading():
        return x509.load_pem_x509_certificates(data)


def load_der(data: bytes) -> x509.Certificate:
    """One certificate; raises ValueError."""
    with reading():
        return x509.load_der_x509_certificate(data)


def alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    """The names that it has beside its subject; None when it has none; raises ValueError."""
    with reading():
        try:
            return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return None
