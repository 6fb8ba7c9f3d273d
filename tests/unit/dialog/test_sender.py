"""What is known of a dialog that sends."""

from __future__ import annotations

from broker.conversation.contact import Contact
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.round_trip import Backoff, RoundTrip
from broker.conversation.window import Window
from broker.dialog.sender import Sender
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
