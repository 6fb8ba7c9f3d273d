"""
A frame that waits for its next hop, as `sys.dm_broker_forwarded_messages` shows it.

`copy_held` runs on the loop and copies the little that can change, `held_values` decodes the rest wherever it is
called. The body is not looked at.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from broker.forwarding.outbox import Outbox
from broker.net.peers import Peers
from broker.observe.waiting import why_held
from broker.wire.layout import HEADER, HEADER_BYTES, NO_GUID, TIME_TO_LIVE_AT, TIMES, Flag


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """
    One held frame at one moment.

    Shape: `frame` is the one that is held, of which only what never changes may be read; `time_to_live` and
    `time_consumed` in ms, the time it waited here included; `held_ms` since it came or was last handed to the link.
    """

    frame: bytearray
    time_to_live: int
    time_consumed: int
    held_ms: int
    address: str
    why: str


def copy_held(outbox: Outbox, peers: Peers, *, now: float) -> list[HeldCopy]:
    """Every frame that waits in one outbox, in the order of leaving. Cost: a microsecond a frame."""
    if not outbox.held:
        return []
    address, why = str(outbox.address), why_held(outbox, peers)
    copies = []
    for frame, since, _ in outbox.held:
        waited = int((now - since) * 1000)
        time_to_live, time_consumed = TIMES.unpack_from(frame, TIME_TO_LIVE_AT)
        copies.append(HeldCopy(frame, time_to_live, time_consumed + waited, waited, address, why))
    return copies


def held_values(copy: HeldCopy) -> dict[str, object]:
    """
    The columns of one frame by name.

    Shape: times in whole seconds, as the original's; what is left of a life shorter than a second still counts as one.
    """
    frame = copy.frame
    (
        _,
        _,
        flags,
        hop_count,
        hop_limit,
        _,
        _,
        message_id,
        conversation_id,
        sequence,
        fragment,
        _,
        _,
        _,
        from_length,
        _,
        from_instance,
        to_instance,
        to_length,
    ) = HEADER.unpack_from(frame)
    names_at = HEADER_BYTES + to_length
    return {
        "conversation_id": uuid.UUID(bytes=conversation_id),
        "is_initiator": not flags & Flag.FROM_TARGET,
        "to_service_name": frame[HEADER_BYTES:names_at].decode(errors="replace"),
        "to_broker_instance": None if to_instance == NO_GUID else uuid.UUID(bytes=to_instance),
        "from_service_name": frame[names_at : names_at + from_length].decode(errors="replace"),
        "from_broker_instance": None if from_instance == NO_GUID else uuid.UUID(bytes=from_instance),
        "adjacent_broker_address": copy.address,
        "message_sequence_number": sequence,
        "message_fragment_number": fragment,
        "hops_remaining": max(0, hop_limit - hop_count),
        "time_to_live": -(-copy.time_to_live // 1000),
        "time_consumed": copy.time_consumed // 1000,
        "message_id": uuid.UUID(bytes=message_id),
        "why_held": copy.why,
        "held_ms": copy.held_ms,
        "frame_bytes": len(frame),
    }
