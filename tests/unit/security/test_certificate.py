"""Certificates that the library reads with errors of its own are refused like all others."""

from __future__ import annotations

import ssl

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from broker.net.tls import identify
from broker.security.identity import alternative_names, load_der, load_pem, reading
from tests.support.certificates import make

GOOD = make("gateway", "gateway.example")
VERSION_3, VERSION_29 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x1c"
NONE = GOOD.der.replace(VERSION_3, VERSION_29, 1)  # of a version that there is not
NONE_PEM = ssl.DER_cert_to_PEM_cert(NONE)


def test_a_good_one_is_read() -> None:
    names = alternative_names(load_der(GOOD.der))

    assert names is not None
    assert ["gateway.example"] == names.get_values_for_type(x509.DNSName)
    assert [GOOD.certificate] == load_pem(GOOD.pem)


def test_one_without_other_names_has_none() -> None:
    assert alternative_names(make("gateway").certificate) is None


def test_one_of_a_version_that_there_is_not_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="28 is not a valid X509 version"):
        load_der(NONE)
    with pytest.raises(ValueError, match="28 is not a valid X509 version"):
        load_pem(NONE_PEM.encode())
    with pytest.raises(ValueError, match="28 is not a valid X509 version"):
        identify(NONE)


@pytest.mark.parametrize(
    "error",
    [
        x509.DuplicateExtension("twice", x509.ObjectIdentifier("1.2.3")),
        x509.UnsupportedGeneralNameType("other"),
        UnsupportedAlgorithm("none"),
    ],
)
def test_every_error_of_the_library_is_a_value_error(error: Exception) -> None:
    with pytest.raises(ValueError, match="a certificate cannot be read"), reading():
        raise error
