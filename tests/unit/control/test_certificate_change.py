"""What a change of certificate files comes to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from broker.control.certificate_change import SHOWN_MAX, shown_credentials, shown_security, tell_change, tell_nobody
from broker.net.certificate import Identity
from broker.net.tls import NO_SECURITY, Encryption, Security
from broker.security.identity import Peers, parse_peers
from broker.security.session import Credentials
from tests.support.identities import issued

DAY = datetime(2026, 1, 1, tzinfo=UTC)


class Heard:
    """Who is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Mapping[str, list[str]], Mapping[str, list[str]]]] = []

    def __call__(self, whose: str, before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> None:
        self.told.append((whose, before, after))


def identity(name: str) -> Identity:
    return Identity(f"CN={name}", f"of {name}", (), DAY, DAY)


def test_only_what_has_gone_or_come_is_told() -> None:
    heard = Heard()
    before = {"certificate": frozenset({"a"}), "trust": frozenset({"x", "y"})}

    tell_change(heard, "endpoint", before, {"certificate": frozenset({"b"}), "trust": frozenset({"x"})})

    assert [("endpoint", {"certificate": ["a"], "trust": ["y"]}, {"certificate": ["b"]})] == heard.told


def test_the_same_in_another_file_is_no_change() -> None:
    heard = Heard()

    tell_change(heard, "endpoint", {"trust": frozenset({"x"})}, {"trust": frozenset({"x"})})

    assert [] == heard.told


def test_of_many_some_are_named_and_the_others_counted() -> None:
    heard = Heard()

    tell_change(heard, "endpoint", {}, {"trust": frozenset(map(str, range(SHOWN_MAX + 7)))})

    [(_, gone, come)] = heard.told
    assert ({}, SHOWN_MAX + 1, "7 more") == (gone, len(come["trust"]), come["trust"][-1])


def test_an_endpoint_is_what_it_shows_and_whom_it_trusts() -> None:
    security = Security(
        Encryption.REQUIRED, own=identity("own"), own_chain=(identity("between"),), trusted=(identity("ca"),)
    )

    assert {
        "certificate": {"CN=own sha256:of own", "CN=between sha256:of between"},
        "trust": {"CN=ca sha256:of ca"},
    } == shown_security(security)
    assert {"certificate": frozenset(), "trust": frozenset()} == shown_security(NO_SECURITY)


def test_a_database_is_known_by_the_certificates_that_sign_and_those_that_are_sealed_to() -> None:
    billing = parse_peers(issued("billing").certificate_pem)
    [signing] = billing

    shown = shown_credentials(Credentials(None, Peers(billing)))

    fingerprints = [signing.fingerprint, *(one.fingerprint for one in signing.sealing)]
    assert 2 <= len(fingerprints)
    assert {"certificate": set(), "peers": {f"CN=billing sha256:{one.hex()}" for one in fingerprints}} == shown


def test_nobody_need_listen() -> None:
    tell_change(tell_nobody, "endpoint", {"trust": frozenset({"x"})}, {})
