"""What is known of a dialog that sends."""

from __future__ import annotations

from collections import Counter

from broker.conversation.contact import Contact
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.round_trip import Backoff, RoundTrip
from broker.conversation.window import Window
from broker.dialog.sender import Sender
from broker.dialog.trips import MICROSECONDS, Trips
from broker.forwarding.hop import bucket
from broker.routing.address import NetworkAddress
from broker.wire.layout import Flag


def test_sender_rests_when_nothing_is_loaded_until_it_is_sent_again() -> None:
    outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(10, 1000))
    sender = Sender(1, Contact(bytes(16), True, "A", bytes(16), "B"), outbound, (0, 0))
    rests = [sender.is_resting]
    outbound.offer(Outgoing((0, 0), int(Flag.LAST_FRAGMENT), b""))
    outbound.take(0.0)
    rests.append(sender.is_resting)

    outbound.rest()
    rests.append(sender.is_resting)
    outbound.time_out()
    rests.append(sender.is_resting)

    assert rests == [False, False, True, False]


def test_round_trip_is_noted_once_under_the_next_hop() -> None:
    """Of an answer that says nothing new nothing is noted."""
    outbound = Outbound(RoundTrip(Backoff(1.0, 8.0)), Window(8, 1 << 20))
    sender = Sender(1, Contact(bytes(16), True, "A", bytes(16), "B"), outbound, (0, 0))
    sender.next_hop = NetworkAddress("far", 1)
    outbound.offer(Outgoing((0, 0), int(Flag.LAST_FRAGMENT), b"x"))
    outbound.take(10.0)
    trips: Trips = Counter()

    done = [sender.acknowledge((1, 0), now, (), trips) for now in (10.25, 11.0)]

    assert done == [1, 0]
    assert trips == {(NetworkAddress("far", 1), bucket(0.25)): 1, (NetworkAddress("far", 1), MICROSECONDS): 250_000}
