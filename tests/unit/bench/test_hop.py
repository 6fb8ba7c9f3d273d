"""What hops are made of; that they move frames is tried in tests/loopback."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.bench.forwarding import FramesLostError, Hop, route_script
from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute


class FakeDaemon:
    """A gateway that tells of its forwarding."""

    def __init__(self, held: int, dropped: dict[str, int]) -> None:
        self._told = {"forwarding": {"held": held, "dropped": dropped}}

    def status(self) -> dict[str, Any]:
        return self._told


def hop_with(daemon: FakeDaemon | None) -> Hop:
    return Hop("gateway", (1,), 2, (3,), daemon=cast("Any", daemon))


def test_routes_lead_over_the_ports_in_turn() -> None:
    text = route_script(["//a", "//b", "//c"], [20_001, 20_002])

    routes = [statement for statement in parse_script(text) if isinstance(statement, CreateRoute)]
    assert ["//a", "//b", "//c"] == [route.properties.service_name for route in routes]
    assert [f"tcp://127.0.0.1:{port}" for port in (20_001, 20_002, 20_001)] == [
        route.properties.address for route in routes
    ]


@pytest.mark.parametrize(("held", "dropped"), [(1, {}), (0, {"no route": 2})])
def test_a_gateway_that_kept_or_lost_a_frame_is_found_out(held: int, dropped: dict[str, int]) -> None:
    with pytest.raises(FramesLostError, match=rf"^gateway: {held} frames held, dropped: "):
        hop_with(FakeDaemon(held, dropped)).check()


def test_a_gateway_that_forwarded_everything_is_in_order() -> None:
    hop_with(FakeDaemon(0, {})).check()


def test_a_relay_has_nothing_to_tell() -> None:
    hop_with(None).check()
