"""What a peer announces is taken as addresses where it is one, and nothing else of it does harm."""

from __future__ import annotations

import msgspec

from broker.net.announced import announced
from broker.routing.address import NetworkAddress
from broker.wire.handshake import Agreement
from tests.support.peers import OWN, PEER


def test_announced_addresses_that_are_none_are_left_out() -> None:
    texts = ("tcp://10.0.0.1", "TCP://10.0.0.1:4022", "tcp://there:1", "LOCAL", "TRANSPORT", "nonsense", "")
    agreement = Agreement(1, OWN.max_frame, 1.0, msgspec.structs.replace(PEER, addresses=texts), is_self=False)

    assert {NetworkAddress("10.0.0.1"), NetworkAddress("there", 1)} == announced(agreement)
