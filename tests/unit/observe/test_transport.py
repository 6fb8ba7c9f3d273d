"""What is told of connections: certificates and their ends, plain text, and what connections are slowed by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.settings import AdminSettings
from broker.net.tls import NO_SECURITY, Encryption, Identity, Security
from broker.observe.snapshot import slowed_by
from broker.observe.status import (
    CERTIFICATES_MAX,
    WARNINGS_MAX,
    certificate_part,
    certificates_in_use,
    expiry_warnings,
    own_certificate_problem,
    transport_readers,
    transport_status,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def certificate(name: str, days: float = 100.0) -> Identity:
    return Identity(f"CN={name}", f"fingerprint of {name}", (), NOW - DAY, NOW + days * DAY)


OWN, BETWEEN, CA, OTHER, PEER = (certificate(name) for name in ("own", "between", "ca", "other", "peer"))
SECURITY = Security(Encryption.REQUIRED, is_authenticating=True, own=OWN, own_chain=(BETWEEN,), trusted=(CA, OTHER))


def linked(*chain: Identity) -> Any:
    return SimpleNamespace(transport=SimpleNamespace(chain=chain))


def running(
    security: Security = SECURITY,
    *links: Any,
    encryption: str = "required",
    problem: str = "",
    denied: str = "",
    admin: Mapping[str, object] | None = None,
) -> Any:
    """An instance, as far as it is looked at."""
    admission = SimpleNamespace(most=500, refused={"connections": 3}, meters=SimpleNamespace(pauses={}))
    return SimpleNamespace(
        settings=SimpleNamespace(
            endpoint=SimpleNamespace(encryption=encryption, authentication="certificate"),
            admin=AdminSettings.read(admin or {}),
        ),
        certificates=SimpleNamespace(security=security, reloads=2, failures=1, problem=problem),
        forwarder=SimpleNamespace(pool=SimpleNamespace(over_payer=7)),
        peers=SimpleNamespace(
            links=dict(enumerate(links)),
            entrance=SimpleNamespace(security=security, handshakes=[None] * 4),
            admission=admission,
            permissions=SimpleNamespace(warning=denied),
        ),
    )


def test_every_certificate_in_use_is_told_once_for_each_role() -> None:
    found = list(certificates_in_use(SECURITY, [linked(PEER, CA), linked(PEER, CA), linked()]))

    assert [
        ("own", OWN),
        ("own_chain", BETWEEN),
        ("trust", CA),
        ("trust", OTHER),
        ("peer", PEER),
        ("peer_chain", CA),
    ] == found
    assert [] == list(certificates_in_use(NO_SECURITY, [linked()]))


def test_metrics_tell_when_each_ends_and_how_reloading_went() -> None:
    readers = transport_readers()
    instance = running(SECURITY, linked(PEER, CA))

    found = {name: list(read(instance)) for name, read in readers.items()}

    expiries = dict(found["broker_tls_certificate_expiry_timestamp_seconds"])
    assert (NOW + 100 * DAY).timestamp() == expiries[("peer", "CN=peer")] == expiries[("own", "CN=own")]
    assert [((), 2)] == found["broker_tls_reloads_total"]
    assert [((), 1)] == found["broker_tls_reload_failures_total"]
    assert [((), 1)] == found["broker_tls_last_reload_successful"]
    assert [((), 4)] == found["broker_tls_handshakes"]
    assert {("connections",): 3, ("connections_per_peer",): 0} == dict(found["broker_connections_refused_total"])
    assert {("bytes_per_second",): 0, ("messages_per_second",): 0} == dict(found["broker_connection_pauses_total"])
    assert [((), 7)] == found["broker_forward_peer_share_exceeded_total"]


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (31, []),
        (29.5, ["the certificate of a peer ends in 29 days, at 2026-01-30 12:00 UTC: CN=peer"]),
        (0.5, ["the certificate of a peer ends in 12 hours, at 2026-01-01 12:00 UTC: CN=peer"]),
        (-1, ["the certificate of a peer has expired at 2025-12-31 00:00 UTC: CN=peer"]),
    ],
)
def test_end_of_a_certificate_is_a_warning_thirty_days_ahead(days: float, told: Sequence[str]) -> None:
    assert told == expiry_warnings([("peer", certificate("peer", days))], NOW)


def test_a_certificate_that_is_not_valid_yet_tells_of_the_clock() -> None:
    """It was valid when the instance began, or when the peer came."""
    certificates = [("own", certificate("gw")), ("peer", certificate("peer"))]
    told = (
        "the certificate of this instance is not valid before 2025-12-31 00:00 UTC, by the clock of this machine: CN=gw"
    )

    assert [told] == expiry_warnings(certificates, NOW - 2 * DAY)
    assert [] == expiry_warnings(certificates, NOW - DAY)


def test_of_many_that_end_soon_some_are_named_and_the_others_counted() -> None:
    many = [("trust", certificate(str(number), 1)) for number in range(WARNINGS_MAX + 5)]

    told = expiry_warnings(many, NOW)

    assert (WARNINGS_MAX + 1, "5 more certificates end soon") == (len(told), told[-1])


def test_status_has_what_ends_first_at_the_top() -> None:
    soon = certificate("soon", 10)

    status = transport_status(running(SECURITY, linked(soon, CA)), now=NOW)

    first = status["certificates"][0]
    assert ("peer", "CN=soon", 10, "2026-01-11T00:00:00+00:00") == tuple(
        first[name] for name in ("role", "name", "days_left", "not_after")
    )
    assert ["the certificate of a peer ends in 10 days, at 2026-01-11 00:00 UTC: CN=soon"] == status["warnings"]
    assert ("required", "certificate", 500, {"connections": 3}) == tuple(
        status[name] for name in ("encryption", "authentication", "connections_max", "refused")
    )


def test_status_warns_of_plain_text_and_of_files_that_are_not_in_use() -> None:
    status = transport_status(running(NO_SECURITY, encryption="disabled", problem="endpoint.trust: gone"), now=NOW)

    assert ["connections are not encrypted", "certificate files are not in use: endpoint.trust: gone"] == (
        status["warnings"]
    )


def test_no_more_certificates_are_told_than_fit() -> None:
    peers = [linked(certificate(str(number), number + 1)) for number in range(CERTIFICATES_MAX + 1)]

    told = transport_status(running(SECURITY, *peers), now=NOW)["certificates"]

    assert (CERTIFICATES_MAX, "CN=0") == (len(told), told[0]["name"])


@pytest.mark.parametrize(("days", "is_expired"), [(1, False), (0, True), (-1, True)])
def test_own_certificate_that_has_expired_is_a_problem(days: float, *, is_expired: bool) -> None:
    security = Security(Encryption.REQUIRED, own=certificate("own", days))

    assert is_expired == ("has expired at" in own_certificate_problem(security, now=NOW))
    assert "" == own_certificate_problem(NO_SECURITY)


def test_files_are_a_part_that_may_fail_where_there_are_any() -> None:
    watch: Any = SimpleNamespace(security=SECURITY, problem="broken")
    plain: Any = SimpleNamespace(security=NO_SECURITY, problem="")

    assert ({"certificate files": "broken"}, {}) == (certificate_part(watch), certificate_part(plain))


def certificate_names(security: Security) -> set[str]:
    return {one.principal_name for _, one in certificates_in_use(security, [])}


@pytest.mark.parametrize(
    ("is_paused", "reasons", "told"),
    [
        (False, {"limits.pool_share"}, ""),
        (True, {"limits.pool_share", "limits.bytes_per_second"}, "limits.bytes_per_second, limits.pool_share"),
        (True, set(), "endpoint.backpressure"),
    ],
)
def test_connection_that_is_not_read_says_by_which_setting(*, is_paused: bool, reasons: set[str], told: str) -> None:
    link: Any = SimpleNamespace(is_paused=is_paused, slowed_by=reasons)

    assert told == slowed_by(link)


def test_status_warns_when_nobody_may_connect() -> None:
    status = transport_status(running(denied="nobody may connect"), now=NOW)

    assert ["nobody may connect"] == status["warnings"]


@pytest.mark.parametrize(
    ("admin", "told"),
    [
        ({"listen": "127.0.0.1:9422"}, ["every user of this machine has the role admin on 127.0.0.1:9422"]),
        ({"listen": "127.0.0.1:9422", "loopback_role": "admin"}, []),
        ({}, []),
    ],
)
def test_status_warns_of_a_role_that_everybody_on_the_machine_has_unsaid(
    admin: Mapping[str, object], told: Sequence[str]
) -> None:
    assert told == transport_status(running(admin=admin), now=NOW)["warnings"]
