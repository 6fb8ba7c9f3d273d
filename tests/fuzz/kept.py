"""Credentials: the file of admin tokens, certificates and keys in files, and a certificate of a handshake."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from broker.config.admin_access import TokenFileError, find_token, read_tokens
from broker.errors import BrokerError
from broker.net.tls import identify
from broker.security.certificate_files import read_certificates, read_keys
from broker.security.identity import parse_own, parse_peers
from tests.fuzz.target import Target
from tests.support.identities import issued

NOW = datetime(2026, 11, 22, tzinfo=UTC)
_DIRECTORY = tempfile.TemporaryDirectory(prefix="broker-fuzz-")  # gone when the process ends


def _file(name: str, data: bytes) -> Path:
    path = Path(_DIRECTORY.name) / name
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def _tokens(data: bytes) -> None:
    """Of a file of tokens, what is read can be looked for and has an end that can be compared."""
    tokens = read_tokens(_file("tokens", data))
    assert find_token(tokens, "broker_none") is None
    assert all(token.is_valid_at(NOW) in {True, False} for token in tokens)


def _pem(data: bytes) -> None:
    """Certificates and keys in PEM: read by everything that reads them, each with its own refusal."""
    path = _file("any.pem", data)
    for read in (read_certificates, read_keys):
        try:
            read(path)
        except (ValueError, BrokerError) as error:
            assert str(error)  # noqa: PT017 - most inputs are refused, and the other readers are asked as well
    try:
        parse_own(data, data)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most inputs are refused, and the other readers are asked as well
    for signing in parse_peers(data):
        assert signing.who.name


def _der(data: bytes) -> None:
    """A certificate as it comes in a handshake: names, hosts and days of it, or a ValueError."""
    identity = identify(data)
    assert len(identity.fingerprint) == 64
    assert identity.covers("gateway.example") in {True, False}


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    pem = issued("fuzzed")
    dates = b'"made_at": "2026-01-01T00:00:00+00:00", "expires_at": null'
    good = b'{"name": "ci", "role": "viewer", "sha256": "' + b"0" * 64 + b'", ' + dates + b"}"
    dated = good.replace(b"null", b'"2026-01-01"')
    return (
        Target("tokens", _tokens, (TokenFileError,), lambda: [good, dated, b"[" * 999, b"\n\n"]),
        Target(
            "pem",
            _pem,
            (ValueError,),
            lambda: [pem.certificate_pem + pem.key_pem, pem.certificate_pem[:300], pem.key_pem, b"-----BEGIN"],
            words=("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----"),
        ),
        Target("der", _der, (ValueError,), lambda: [*_ders(pem.certificate_pem), b"0\x80", b"0\x82\xff\xff"]),
    )


def _ders(pem: bytes) -> list[bytes]:
    """The first one, and the same of a version that there is not."""
    good = ssl.PEM_cert_to_DER_cert(
        pem.decode().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    )
    return [good, good.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x1c")]
