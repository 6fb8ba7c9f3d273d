from __future__ import annotations

import inspect

from broker.net.link import Owner
from broker.net.peers import Peers


def test_peers_hear_all_that_a_link_tells() -> None:
    told = [name for name in vars(Owner) if name.startswith("on_")]

    signatures = {name: list(inspect.signature(getattr(Peers, name)).parameters) for name in told}

    assert len(told) == 8
    assert signatures == {name: list(inspect.signature(getattr(Owner, name)).parameters) for name in told}
