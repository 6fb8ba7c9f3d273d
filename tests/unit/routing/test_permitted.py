"""What permissions add to an explanation; how it is asked for is tried in tests/unit/admin/test_explaining.py."""

from __future__ import annotations

from datetime import UTC, datetime

from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext, RoutingFacts
from broker.routing.explain import DisplayNames, Explanation, Outcome, explain, with_permissions
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, Rule, State
from broker.security.principal import parse_principal, who_is
from broker.wire.layout import NO_GUID


def told() -> Explanation:
    table = build_table([Route("r", NetworkAddress("far"))], now=datetime(2025, 3, 1, tzinfo=UTC))
    here = RoutingContext(table, Hosted(), lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table)
    return explain(RoutingFacts("S", NO_GUID, b"c" * 16), here, DisplayNames())


def rules(*permissions: Permission) -> list[Rule]:
    return [Rule(permission, "*", parse_principal("a"), State.GRANT) for permission in permissions]


def test_what_is_permitted_stays_what_it_is_with_its_reasons() -> None:
    shown = with_permissions(told(), who_is("CN=a"), Grants(rules(*Permission), is_default_deny=True))

    assert (told().sentence, Outcome.FORWARDED) == (shown.sentence, shown.outcome)
    assert [True, True] == [one.is_permitted for one in shown.permissions]


def test_who_may_not_connect_sends_nothing() -> None:
    shown = with_permissions(told(), who_is("CN=a"), Grants(rules(Permission.SEND), is_default_deny=True))

    assert (Outcome.DROPPED, None, 11215) == (shown.outcome, shown.next_hop, shown.number)
    assert shown.sentence.startswith("never taken, because the peer may not connect: not permitted (11215): no GRANT")


def test_way_that_it_would_take_is_still_shown() -> None:
    shown = with_permissions(told(), who_is("CN=b"), Grants(rules(*Permission), is_default_deny=True))

    assert ("tcp://far:4022",) == tuple(one.address for one in shown.passes[0].candidates)
    assert [False, False] == [one.is_permitted for one in shown.permissions]
    assert (
        "USE msdb; GRANT CONNECT ON ENDPOINT::[Broker] TO [CN=b];",
        "USE msdb; GRANT SEND ON SERVICE::[S] TO [CN=b];",
    ) == shown.hints
