"""The outboxes of mirrored pairs: where they lead, and what left them for whom."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.fib import MirroredOutboxes
from broker.forwarding.outbox import Outbox, Ports
from broker.forwarding.pool import Pool
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
ONE, TWO = (MirroredPair(name, UUID(int=1), NORTH, SOUTH) for name in ("//one", "//two"))


class Kept:
    """Pairs and what they ask for."""

    def __init__(self) -> None:
        self.asked: list[MirroredPair] = []
        self.wanted: list[NetworkAddress] = []
        pool, ports = Pool(1 << 20), Ports(drop=lambda *_: None)
        self.pairs = MirroredOutboxes(
            lambda pair, want: Outbox(pair, pool=pool, want=want, ports=ports),
            want=self.wanted.append,
            ask=self.asked.append,
        )


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_each_pair_has_one_outbox(kept: Kept) -> None:
    """Made when first asked for."""
    assert kept.pairs.outbox(ONE) is kept.pairs.outbox(ONE) is not kept.pairs.outbox(TWO)
    assert [ONE, TWO] == list(kept.pairs.outboxes)


def test_outbox_asks_for_the_principal_and_then_for_a_link_to_it(kept: Kept) -> None:
    """While nobody is principal there is nobody to connect to."""
    outbox = kept.pairs.outbox(ONE)

    outbox.want_link()
    kept.pairs.lead({ONE: SOUTH}, [])
    outbox.want_link()

    assert ([ONE], [SOUTH]) == (kept.asked, kept.wanted)


def test_link_of_a_former_principal_takes_nothing_more(kept: Kept) -> None:
    """Whoever is next, and also when nobody is."""
    outbox = kept.pairs.outbox(ONE)
    for address in (SOUTH, None):
        outbox.outlet = cast("Any", object())

        kept.pairs.lead({ONE: address}, [])

        assert outbox.outlet is None


def test_address_has_the_outboxes_of_those_that_it_is_principal_of(kept: Kept) -> None:
    """Of those alone that something was sent to."""
    outbox = kept.pairs.outbox(ONE)

    kept.pairs.lead({ONE: NORTH, TWO: NORTH}, [])
    assert [outbox] == list(kept.pairs.led_to(NORTH))
    kept.pairs.lead({ONE: SOUTH, TWO: None}, [])

    assert ([], [outbox]) == (list(kept.pairs.led_to(NORTH)), list(kept.pairs.led_to(SOUTH)))
    assert {ONE: SOUTH} == kept.pairs.principals


def test_what_left_is_told_by_the_principal_of_that_time(kept: Kept) -> None:
    """What nobody was principal for did not leave."""
    way = ForwardingEntry(kept.pairs.outbox(ONE), Disposition.FORWARDED, kind=0x10, route="r")
    other = ForwardingEntry(kept.pairs.outbox(TWO), Disposition.FORWARDED, kind=0x10, route="other")
    other.frames = 1
    kept.pairs.lead({ONE: NORTH}, [way, other])
    way.frames = 3

    kept.pairs.lead({ONE: None}, [way, other])
    kept.pairs.lead({ONE: SOUTH}, [way, other])
    way.frames = 4
    kept.pairs.lead({ONE: NORTH}, [way, other])

    assert {ONE: {("r", str(NORTH)): 3, ("r", str(SOUTH)): 4}} == kept.pairs.left
    assert (0, 1) == (way.frames, other.frames)


def test_outboxes_that_lead_nowhere_and_hold_nothing_can_be_retired(kept: Kept) -> None:
    """Their frames are still counted."""
    way = ForwardingEntry(kept.pairs.outbox(ONE), Disposition.FORWARDED, kind=0x10, route="r")
    kept.pairs.outbox(TWO)
    kept.pairs.lead({ONE: NORTH, TWO: NORTH}, [way])
    assert set() == kept.pairs.idle()
    way.frames = 3
    kept.pairs.lead({ONE: None}, [way])

    idle = kept.pairs.idle()

    assert {kept.pairs.outboxes[ONE]} == idle
    assert 3 == kept.pairs.retire(idle)
    assert ([TWO], {}) == (list(kept.pairs.outboxes), kept.pairs.left)
