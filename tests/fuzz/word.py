"""Short texts, bodies of own messages, and files: of a partner, of admin tokens, of certificates and keys."""

import ssl
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from broker.catalog.partner import export, read_partner
from broker.config.admin_access import TokenFileError, find_token, parse_holder, read_tokens
from broker.config.units import parse_duration, parse_size, render_duration, render_size
from broker.config.values import parse_listen
from broker.conversation.body_check import error_body, error_parts
from broker.dialog.route_requests import Inquiry, render_inquiry
from broker.errors import BrokerError, PartnerFileError
from broker.net.tls import identify
from broker.routing.address import parse_address, transport_address
from broker.security.certificate_files import read_certificates, read_keys
from broker.security.identity import load_der, parse_own, parse_peers
from broker.security.principal import NOBODY, covers_text, parse_principal, who_is
from examples.routing_service.answering import parse_inquiry
from tests.fuzz.target import KIB, Target, directory, refused
from tests.support.identities import issued
from tests.support.partners import instance

PLAIN = 64 * KIB  # as long as a body that is looked at as XML


# --- names, addresses, amounts ---


def _word(data: bytes) -> None:
    """Whatever a text is taken for, it is that, or a ValueError; what is read can be written and read again."""
    text = data.decode("utf-8", "replace")
    refused(lambda: parse_listen(text))
    refused(lambda: parse_holder(text))
    refused(lambda: _same_address(text))
    refused(lambda: _same_amounts(text))
    transport_address(text)
    pattern, _, subject = text.partition("\n")
    assert covers_text(pattern, subject) in {True, False}
    refused(lambda: parse_principal(pattern).covers(who_is(subject)))
    refused(lambda: parse_principal(text).covers(NOBODY))


def _same_address(text: str) -> None:
    address = parse_address(text)
    assert address == parse_address(str(address))


def _same_amounts(text: str) -> None:
    for read, render in ((parse_size, render_size), (parse_duration, render_duration)):
        try:
            value = read(text)
        except ValueError:
            continue
        assert value == read(render(value))  # type: ignore[arg-type]


WORDS = [
    "tcp://gateway.example:4022",
    "tcp://[::1]:4022",
    "[fe80::1%eth0]:4022",
    "LOCAL",
    "10.5s",
    "64MiB",
    "CN=billing,O=shop\nCN=billing,O=shop",
    "CN=*,OU=\\2C\\+x+O=y\nCN=a,OU=\\,+O=y",
    "sha256:" + "0" * 64,
    "spiffe://shop.example/billing\nspiffe://shop.example/billing",
    "certificate:CN=deploy,O=shop",
    "user:alice",
    "*" * 40 + "\n" + "a" * 80 + "b",
    "CN=" + "*a" * 30 + "\nCN=" + "a" * 90,
    ",".join(["CN=*"] * 20) + "\n" + ",".join(["CN=a"] * 30),
    "//shop/Billing",
    "net.tcp://user@host.example:1/x",
    "9" * 5000 + "s",
    "xn--\u00e4.\u00df.example",
    "CN=\\",
    "CN=#30",
]


# --- bodies of the broker's own messages ---


def _told(data: bytes) -> None:
    """An Error message of any application is read in one pass; a request for a route is one, or a ValueError."""
    code, text = error_parts(data)
    assert error_parts(error_body(code or 0, text))[0] == (code or 0)
    inquiry = parse_inquiry(data)
    assert inquiry == parse_inquiry(render_inquiry(inquiry))


def _told_seeds() -> list[bytes]:
    return [
        error_body(-8490, "no <service> & more"),
        b"<Description>" * 4000,
        b"<Code>" + b" " * 60_000,
        b"<Description>&#" + b"9" * 5000 + b";</Description>",
        b"<Code>1</Code><Description>&#0;&#x110000;&#55296;&lt;&nope;</Description>",
        render_inquiry(Inquiry("//shop/Billing")),
        render_inquiry(Inquiry("//a&<b>\r\n")).replace(b"http:", b"https:"),
        b'<?xml version="1.0" encoding="utf-16"?><MissingRoute/>',
    ]


# --- a partner file ---


def _partner(data: bytes) -> None:
    """The file that a partner has sent."""
    assert read_partner(data).endpoint


def _partner_seeds() -> list[bytes]:
    with TemporaryDirectory() as empty:
        settings = instance(Path(empty) / "fuzzed")
        text = export(settings, "fuzzed", ["//a"], ["//b"], ["tcp://a.example"]).encode()
    unread = text.replace(b"-----END", b"AAAA-----END")
    return [text, text[:900], text.replace(b"version = 1", b"version = 2"), unread, b"a = " + b"[" * 900]


# --- credentials in files ---

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def _file(name: str, data: bytes) -> Path:
    path = directory() / name
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
        refused(partial(read, path), BrokerError)
    refused(lambda: parse_own(data, data))
    for signing in parse_peers(data):
        assert signing.who.name


def _der(data: bytes) -> None:
    """A certificate as it comes in a handshake: names, hosts and days of it, or a ValueError."""
    identity = identify(load_der(data))
    assert len(identity.fingerprint) == 64
    assert identity.covers("gateway.example") in {True, False}


def _ders(pem: bytes) -> list[bytes]:
    """The first one, and the same of a version that there is not."""
    good = ssl.PEM_cert_to_DER_cert(
        pem.decode().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    )
    return [good, good.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x1c")]


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    pem = issued("fuzzed")
    dates = b'"made_at": "2026-01-01T00:00:00+00:00", "expires_at": null'
    good = b'{"name": "ci", "role": "viewer", "sha256": "' + b"0" * 64 + b'", ' + dates + b"}"
    dated = good.replace(b"null", b'"2026-01-01"')
    return (
        Target("word", _word, (), lambda: [one.encode() for one in WORDS]),
        Target("told", _told, (ValueError,), _told_seeds, input_max=PLAIN),
        Target("partner", _partner, (PartnerFileError,), _partner_seeds, input_max=PLAIN),
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
