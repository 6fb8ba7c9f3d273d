"""Throw-away certificates: a CA, what it signs, and files of them."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.net.tls import ALPN, Encryption, Security, load_security

DAY = timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(SHA256()).hex()

    def key_pem(self, password: str = "") -> bytes:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def store(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write both; their paths."""
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        certificate.write_bytes(self.pem)
        key.write_bytes(self.key_pem())
        key.chmod(0o600)
        return certificate, key


def make(
    name: str,
    *hosts: str,
    by: Pair | None = None,
    is_authority: bool = False,
    lists_cert_sign: bool = False,
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    uses: tuple[x509.ObjectIdentifier, ...] = (),
) -> Pair:
    """A certificate for hosts, signed by an authority, else by itself; valid from and until so long from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name) if name else x509.Name([]))
        .issuer_name(by.certificate.subject if by else _name(name or "nobody"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
    if lists_cert_sign:
        names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
        names += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
        usage = x509.KeyUsage(**{name: name == "key_cert_sign" for name in names})
        builder = builder.add_extension(usage, critical=True)
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return Pair(builder.sign(by.key if by else key, SHA256()), key)


def authority(name: str = "test CA") -> Pair:
    return make(name, is_authority=True)


SERVER_ONLY = (ExtendedKeyUsageOID.SERVER_AUTH,)


def security(
    directory: Path,
    name: str,
    pair: Pair,
    *trusted: Pair,
    peers: Sequence[Pair] = (),
    encryption: Encryption = Encryption.REQUIRED,
) -> Security:
    """What an endpoint with these files brings to TLS; it authenticates when it trusts somebody."""
    certificate, key = pair.store(directory, name)
    trust, own = directory / f"{name}.trust", directory / f"{name}.peers"
    trust.write_bytes(b"".join(one.pem for one in trusted))
    own.write_bytes(b"".join(one.pem for one in peers))
    return load_security(
        encryption,
        certificate=certificate,
        private_key=key,
        trust=[str(trust)] if trusted else [],
        peers=[str(own)] if peers else [],
        is_authenticating=bool(trusted or peers),
    )


def endpoint_settings(directory: Path, name: str, pair: Pair, ca: Pair) -> dict[str, object]:
    """The section [endpoint] of an instance that asks everybody for a certificate of the CA; its files are written."""
    certificate, key = pair.store(directory, name)
    (directory / "ca.pem").write_bytes(ca.pem)
    files = {"certificate": str(certificate), "private_key": str(key), "trust": [str(directory / "ca.pem")]}
    return {"encryption": "required", "authentication": "certificate", **files}


def stranger(
    shows: tuple[Path, Path] | None = None, *, alpn: str = ALPN, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """A client that trusts everybody, with a certificate and its key where it shows one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = most
    if alpn:
        context.set_alpn_protocols([alpn])
    if shows is not None:
        context.load_cert_chain(*shows)
    return context


def _general(host: str) -> x509.GeneralName:
    if "://" in host:
        return x509.UniformResourceIdentifier(host)
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
