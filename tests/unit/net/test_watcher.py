"""An instance without mirrored pairs hears of everything and does nothing."""

from __future__ import annotations

from typing import Any, cast

from broker.net.peer_table import Nobody, Watcher
from broker.protocol.frame import ProbeReply, Rejected
from broker.routing.address import NetworkAddress


def test_nobody_takes_whatever_is_told() -> None:
    """It is a watcher like any other."""
    nobody: Watcher = Nobody()
    address, link = NetworkAddress("far"), cast("Any", None)

    nobody.on_served(address, link)
    nobody.on_unserved(address, "gone")
    nobody.on_answered(link, ProbeReply())
    nobody.on_rejected(link, Rejected())
    nobody.on_role(b"i" * 16)
