"""What is known of a dialog that sends."""

from __future__ import annotations

from collections import Counter

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.window import NEVER, Backoff, RoundTrip, Window
from broker.dialog.send_queue import MICROSECONDS, SILENCE, Frontier, Sender, Trips
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

    done = [sender.acknowledge((1, 0), now, (), trips, Frontier()) for now in (10.25, 11.0)]

    assert done == [1, 0]
    assert trips == {(NetworkAddress("far", 1), bucket(0.25)): 1, (NetworkAddress("far", 1), MICROSECONDS): 250_000}


def test_sender_stands_in_a_line_no_longer_than_the_longest_wait() -> None:
    """What was in flight before was acknowledged, and what it has in flight was not."""
    frontier = Frontier()
    sender = Sender(1, Contact(bytes(16), True, "A", bytes(16), "B"), _outbound(cap=8.0), (0, 0))
    frontier.note("B", sent_at=9.0, now=20.0)
    frontier.note("another one", sent_at=11.0, now=30.0)
    turns = [sender.turn_at(frontier)]
    sender.outbound.take(10.0)
    turns.append(sender.turn_at(frontier))
    frontier.note("B", sent_at=9.5, now=14.0)
    turns.append(sender.turn_at(frontier))
    frontier.note("B", sent_at=10.5, now=14.5)

    turns.append(sender.turn_at(frontier))

    assert turns == [-NEVER, 18.0, 14.0 + SILENCE, -NEVER]


def test_answer_tells_how_far_its_service_has_got_unless_it_may_be_to_an_earlier_copy() -> None:
    frontier = Frontier()
    for is_resent in (True, False):
        sender = Sender(1, Contact(bytes(16), True, "A", bytes(16), f"B{is_resent}"), _outbound(cap=8.0), (0, 0))
        sender.outbound.take(10.0)
        if is_resent:
            sender.outbound.rewind()
            sender.outbound.take(11.0)

        sender.acknowledge((1, 0), 12.0, (), Counter(), frontier)

    assert [frontier.turn_at(f"B{is_resent}", 10.5, -NEVER) for is_resent in (True, False)] == [-NEVER, 12.0 + SILENCE]


def _outbound(*, cap: float) -> Outbound:
    """With one fragment."""
    outbound = Outbound(RoundTrip(Backoff(1.0, cap)), Window(8, 1 << 20))
    outbound.offer(Outgoing((0, 0), int(Flag.LAST_FRAGMENT), b"x"))
    return outbound
