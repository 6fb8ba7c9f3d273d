"""What a fragment is to the receiver."""

from dataclasses import replace
from typing import Any

import pytest

from broker.conversation.frames import (
    Contact,
    Fragment,
    FragmentArrival,
    Travel,
    ack_frame,
    classify,
    fault_frame,
    message_frame,
)
from broker.flow import Disposition
from broker.protocol.frame import Fault, Header, checksum, decode_dialog, decode_fault, decode_stored
from broker.protocol.layout import EARLY_WINDOW, NO_GUID, Flag, FrameKind
from broker.routing.decide import RoutingFacts


@pytest.mark.parametrize(
    ("place", "arrival"),
    [
        ((5 + EARLY_WINDOW - 1, 9), FragmentArrival.EARLY),
        ((5 + EARLY_WINDOW, 0), FragmentArrival.TOO_EARLY),
        ((2**64 - 1, 2**32 - 1), FragmentArrival.TOO_EARLY),
    ],
)
def test_too_early_is_what_begins_with_the_window(place: tuple[int, int], arrival: FragmentArrival) -> None:
    assert arrival is classify((5, 2), place)


CONVERSATION, OURS, THEIRS, MESSAGE_ID = (bytes([n]) * 16 for n in range(1, 5))
TRAVEL = Travel(hop_limit=3, time_to_live=700)
INITIATOR = Contact(CONVERSATION, True, "Orders", OURS, "Billing")
TARGET = Contact(CONVERSATION, False, "Orders", OURS, "Billing", THEIRS)


def header(kind: FrameKind, flags: int = 0, **more: Any) -> Header:
    """What every frame of the initiator says."""
    common = Header(
        kind=kind,
        flags=flags,
        message_id=MESSAGE_ID,
        conversation_id=CONVERSATION,
        to_service="Billing",
        from_service="Orders",
        from_broker_instance=OURS,
        to_broker_instance=NO_GUID,
        hop_limit=3,
        time_to_live=700,
    )
    return replace(common, **more)


def test_target_names_the_database_of_the_initiator_and_an_open_dialog_none() -> None:
    assert RoutingFacts("Billing", THEIRS, CONVERSATION, is_from_target=True, database=OURS) == TARGET.facts()
    assert RoutingFacts("Billing", NO_GUID, CONVERSATION, is_from_target=False, database=OURS) == INITIATOR.facts()
    assert Contact(CONVERSATION, True, "Orders", OURS, "Billing", THEIRS) == INITIATOR.bound_to(THEIRS)


def test_message_frame_says_where_it_belongs_and_what_is_stored_here() -> None:
    fragment = Fragment((5, 2), Flag.LAST_FRAGMENT | Flag.END_DIALOG, b"body", (7, 1))

    frame = message_frame(INITIATOR, TRAVEL, MESSAGE_ID, fragment)

    flags = Flag.LAST_FRAGMENT | Flag.END_DIALOG
    place = {"sequence_number": 5, "fragment_number": 2, "ack_sequence": 7, "ack_fragment": 1}
    assert (header(FrameKind.MESSAGE, flags, body_checksum=checksum(b"body"), **place), b"body") == decode_dialog(frame)


def test_ack_frame_tells_the_place_and_what_is_held_out_of_order() -> None:
    plain = ack_frame(INITIATOR, TRAVEL, MESSAGE_ID, (7, 1))
    frame = ack_frame(INITIATOR, TRAVEL, MESSAGE_ID, (7, 1), ((7, 3, 4), (9, 0, 0)))

    head, body = decode_dialog(frame)
    assert ((7, 3, 4), (9, 0, 0)) == decode_stored(body).stored
    expected = header(FrameKind.ACK, ack_sequence=7, ack_fragment=1)
    assert replace(expected, body_checksum=checksum(body)) == head
    assert (expected, b"") == decode_dialog(plain)


def test_fault_frame_acknowledges_nothing() -> None:
    frame = fault_frame(INITIATOR, TRAVEL, MESSAGE_ID, Fault(-8490, "not here"))

    head, body = decode_dialog(frame)
    assert Fault(-8490, "not here") == decode_fault(body)
    assert header(FrameKind.FAULT, body_checksum=checksum(body)) == head


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"to_broker_instance": NO_GUID}, None),
        ({"to_broker_instance": bytes(16 * [9])}, Disposition.NOT_OF_THIS_DIALOG),
        ({"conversation_id": bytes(16 * [255])}, Disposition.NOT_OF_THIS_DIALOG),
        ({"flags": Flag.FROM_TARGET}, Disposition.NOT_OF_THIS_DIALOG),
        ({"to_service": "//Other"}, Disposition.NOT_OF_THIS_DIALOG),
        ({"from_service": "//Other"}, Disposition.NOT_OF_THIS_DIALOG),
        ({"from_broker_instance": bytes(16 * [255])}, Disposition.OTHER_INSTANCE),
    ],
)
def test_frame_is_of_a_dialog_when_all_of_its_header_fits(change: dict[str, Any], reason: Disposition | None) -> None:
    head, _ = decode_dialog(fault_frame(INITIATOR, TRAVEL, MESSAGE_ID, Fault(-8490, "")))
    target = Contact(
        head.conversation_id,
        is_initiator=False,
        service_name=head.to_service,
        broker_instance=bytes(16 * [7]),
        far_service=head.from_service,
        far_broker_instance=head.from_broker_instance,
    )

    assert reason is target.why_refused(replace(head, **change))


@pytest.mark.parametrize("instance", [NO_GUID, bytes(15) + b"x"])
def test_dialog_is_open_at_its_initiator_until_a_target_is_known(instance: bytes) -> None:
    initiator = INITIATOR.bound_to(instance)

    assert (instance == NO_GUID) is initiator.is_open
    assert not replace(initiator, is_initiator=False).is_open
