"""What a peer announces is taken as addresses where it is one, and nothing else of it does harm."""

from __future__ import annotations

import msgspec

from broker.net.peer_table import announced
from broker.net.tls import identify
from broker.protocol.link_state import Agreement
from broker.routing.address import NetworkAddress
from tests.support.certificates import make
from tests.support.peers import OWN, PEER


def test_announced_addresses_that_are_none_are_left_out() -> None:
    texts = ("tcp://10.0.0.1", "TCP://10.0.0.1:4022", "tcp://there:1", "LOCAL", "TRANSPORT", "nonsense", "")
    agreement = Agreement(1, OWN.max_frame, 1.0, msgspec.structs.replace(PEER, addresses=texts), is_self=False)

    assert {NetworkAddress("10.0.0.1"), NetworkAddress("there", 1)} == announced(agreement)


def test_where_peers_prove_who_they_are_only_covered_hosts_are_believed() -> None:
    texts = ("tcp://a.example", "tcp://b.example")
    agreement = Agreement(1, OWN.max_frame, 1.0, msgspec.structs.replace(PEER, addresses=texts), is_self=False)
    identity = identify(make("a", "a.example").der)

    assert {NetworkAddress("a.example")} == announced(agreement, identity, is_authenticating=True)
    assert set() == announced(agreement, None, is_authenticating=True)
    assert {NetworkAddress("a.example"), NetworkAddress("b.example")} == announced(agreement, identity)
