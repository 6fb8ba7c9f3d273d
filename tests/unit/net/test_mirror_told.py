"""What partners said, in words."""

from __future__ import annotations

from broker.net.mirrors import tell
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirroredRoute

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")


def route() -> MirroredRoute[NetworkAddress]:
    made = MirroredRoute(NORTH, SOUTH, lambda: 0.0)
    made.use(1.0)
    return made


def test_both_are_told_in_the_order_of_the_route() -> None:
    """Silent, out of reach, answered: each has its words."""
    one = route()
    assert tell(one) == "tcp://north:4022 has not answered yet, tcp://south:4022 has not answered yet"

    one.on_unreachable(NORTH, "Connection refused", 2.0)
    one.on_reply(SOUTH, "mirror", 3, 2.0)

    assert tell(one) == "tcp://north:4022 (Connection refused), tcp://south:4022 says mirror, epoch 3"


def test_epoch_that_counts_for_nothing_is_no_part_of_an_answer() -> None:
    """What was refused is told as a problem."""
    one = route()

    one.on_reply(NORTH, "principal", -1, 2.0)
    one.on_reply(SOUTH, "principal", 1, 2.0)

    assert tell(one) == "tcp://north:4022 (answered with the epoch -1), tcp://south:4022 says principal, epoch 1"


def test_alarm_is_told_behind_it() -> None:
    """Two that claim one epoch."""
    one = route()

    one.on_reply(NORTH, "principal", 1, 2.0)
    one.on_reply(SOUTH, "principal", 1, 2.0)

    assert tell(one).endswith(f"; {one.alarm}")
