"""What the pass does with a peer's frames is what the explanation says, with any rules, in any order, by any kernel."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import KERNELS
from broker.forwarding.pool import Limits
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import NO_GUID, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingFacts
from broker.routing.explain import DisplayNames, explain, with_permissions
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal, who_is
from tests.support.forwarding import Sender

SERVICES, PEERS = ("a", "ab", "b", "unrouted"), ("CN=x", "CN=y", "public")
TABLE = build_table(
    [Route(name, NetworkAddress("far"), remote_service_name=name) for name in SERVICES[:3]],
    now=datetime(2025, 3, 1, tzinfo=UTC),
)

rules = st.builds(
    lambda securable, principal, state: PermissionRule(Permission.SEND, securable, parse_principal(principal), state),
    st.sampled_from([*SERVICES, "*", "a*"]),
    st.sampled_from([*PEERS, "x", "*"]),
    st.sampled_from(PermissionState),
)
steps = st.one_of(
    st.lists(rules, max_size=4).map(tuple),
    st.tuples(st.sampled_from(PEERS), st.lists(st.sampled_from(SERVICES), min_size=1, max_size=5)),
)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@given(steps=st.lists(steps, max_size=12), is_default_deny=st.booleans())
def test_pass_does_what_the_explanation_says(kernel: Any, steps: list[Any], *, is_default_deny: bool) -> None:
    forwarder = Forwarder(
        Limits(1 << 20, 1 << 16, 16),
        deliver=lambda *_: None,
        request_link=lambda _: None,
        health_of=lambda _: AddressHealth.UNTRIED,
        kernel=kernel,
    )
    forwarder.set_routing(table=TABLE, hosted=Hosted(), is_forwarding=True)
    grants = Grants(is_default_deny=is_default_deny)
    for number, step in enumerate(steps):
        if not step or isinstance(step[0], PermissionRule):
            grants = Grants(step, is_default_deny=is_default_deny)
            forwarder.forget_decisions()
            continue
        peer, services = step
        origin = Sender()
        expected = []
        slab = bytearray()
        for place, service in enumerate(services):
            conversation = (1000 * number + place).to_bytes(16, "big")
            slab += encode_dialog(
                Header(FrameKind.MESSAGE, 0, conversation, conversation, service, "from", bytes(16)), b""
            )
            facts, names = RoutingFacts(service, NO_GUID, conversation), DisplayNames({}, str, str)
            told = explain(facts, forwarder.routing_context, names)
            is_permitted = with_permissions(told, who_is(peer), grants).permissions[1].is_permitted
            expected += [told.disposition if is_permitted else "not permitted"]

        forwarder.forward(slab, len(slab), float(number), origin, grants.profile(who_is(peer)))

        assert Counter(one for one in expected if one != "forwarded") == Counter(str(why) for _, why in origin.rejected)
        assert forwarder.unaccounted == 0
