"""What a peer may do follows from who it is; changes reach links that are open."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.errors import ConnectDeniedError
from broker.net.quotas import EVERYTHING, REASON_MAX, Permissions
from broker.net.tls import Identity
from broker.security.grants import OPEN, Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import NOBODY, Who, parse_principal

ORDERS = Who("CN=orders", "orders", (), "0a" * 32)


class Transport:
    """As far as permissions ask."""

    def __init__(self, who: Who | None) -> None:
        now = datetime.now(UTC)
        self.identity = None if who is None else Identity("shown", who.fingerprint, (), now, now, who=who)


class FakeLink:
    """A link that remembers why it failed."""

    def __init__(self, who: Who | None = ORDERS) -> None:
        self.transport = Transport(who)
        self.permit = EVERYTHING
        self.failed: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.failed.append(error)


def grants(*names: str, permission: Permission = Permission.CONNECT) -> Grants:
    rules = [PermissionRule(permission, "*", parse_principal(name), PermissionState.GRANT) for name in names]
    return Grants(rules, is_default_deny=True, endpoint="gw")


@pytest.fixture
def permissions() -> Permissions:
    return Permissions()


def test_nothing_is_asked_before_there_are_grants(permissions: Permissions) -> None:
    link: Any = FakeLink(None)

    assert permissions.admit(link) is None
    assert (NOBODY, OPEN) == (link.permit.who, link.permit.profile)
    assert "" == EVERYTHING.why_not("//a")


def test_refusal_names_who_and_the_missing_statement(permissions: Permissions) -> None:
    link: Any = FakeLink()
    permissions.grants = grants("billing")

    refused = permissions.admit(link)

    missing = "no GRANT CONNECT ON ENDPOINT::[gw] TO [CN=orders] or public"
    assert ConnectDeniedError("CN=orders", missing) == refused
    assert permissions.refused == 1


def test_peer_with_our_own_certificate_is_not_refused_before_hello(permissions: Permissions) -> None:
    link: Any = FakeLink()
    permissions.grants = grants()
    ours, other = FakeLink().transport.identity, FakeLink(Who(fingerprint="0b" * 32)).transport.identity

    assert permissions.admit_first(link, ours) is None
    assert permissions.admit_first(link, other) is not None
    assert permissions.admit_first(link, None) is not None
    assert permissions.admit(link) is not None


def test_change_closes_those_who_may_not_connect_any_more(permissions: Permissions) -> None:
    stays, goes = FakeLink(), FakeLink(None)
    links: Any = [stays, goes]

    permissions.change(grants("orders"), links)

    assert ([], 1) == (stays.failed, len(goes.failed))
    assert not stays.permit.profile.is_open


def test_same_grants_again_change_nothing(permissions: Permissions) -> None:
    link = FakeLink()
    links: Any = [link]
    permissions.change(grants("orders"), links)
    profile = link.permit.profile

    permissions.change(grants("orders"), links)

    assert profile is link.permit.profile


def test_why_not_is_remembered_and_has_a_bound(permissions: Permissions) -> None:
    link: Any = FakeLink()
    permissions.grants = grants("orders")
    permissions.admit(link)

    why = link.permit.why_not("s")
    long = link.permit.why_not("s" * 2 * REASON_MAX)

    assert "no GRANT SEND ON SERVICE::[s] TO [CN=orders] or public" == why
    assert REASON_MAX == len(long)
    assert permissions.last_refusal.startswith("CN=orders may not send: no GRANT SEND")


def test_endpoint_that_lets_nobody_in_is_worth_a_warning(permissions: Permissions) -> None:
    warnings = [permissions.warning]
    for known in (grants(), grants("orders"), Grants(is_default_deny=False)):
        permissions.grants = known
        warnings.append(permissions.warning)

    assert ["", "nobody may connect: no GRANT CONNECT in msdb; see broker check", "", ""] == warnings
