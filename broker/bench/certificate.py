"""A throw-away certificate for a gateway under measurement, and for its load generator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

LIFE = timedelta(days=90)  # longer than the month before an end that is warned of


def make_pair(directory: Path) -> tuple[Path, Path]:
    """Certificate and key, signed by itself, as PEM files in a directory; their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - LIFE, now + LIFE)
    ).sign(key, SHA256())
    certificate, private_key = directory / "bench.pem", directory / "bench.key"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private_key.touch(mode=0o600)
    private_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private_key


def tls_environ(pair: tuple[Path, Path]) -> dict[str, str]:
    """What a gateway's environment has to say so that it takes TLS only, and asks nobody who it is."""
    certificate, private_key = pair
    return {
        "BROKER_ENDPOINT__ENCRYPTION": "required",
        "BROKER_ENDPOINT__CERTIFICATE": str(certificate),
        "BROKER_ENDPOINT__PRIVATE_KEY": str(private_key),
    }
