"""
Frames that wait for their next hop, as `sys.dm_broker_forwarded_messages` shows them.

`copy_held` runs on the loop and takes the frames that wait at one moment, `held_values` decodes one of them wherever it
is called. The body is not looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from broker.forwarding.held import Held
from broker.forwarding.outbox import Outbox
from broker.forwarding.pack import Piece
from broker.forwarding.way import Buffer
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers
from broker.observe.waiting import next_hop, why_held
from broker.protocol.layout import HEADER, HEADER_BYTES, NO_GUID, Flag


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """
    What one outbox held at one moment.

    Shape: `pieces` in the order of leaving; `now` monotonic seconds of that moment; `address` where they are to go;
    `why` they wait.
    """

    pieces: tuple[Piece, ...]
    now: float
    address: str
    why: str

    @property
    def frames(self) -> Iterator[Held]:
        """Each frame by itself; in any thread."""
        return chain.from_iterable(piece.helds() for piece in self.pieces)


def copy_held(outbox: Outbox, peers: Peers, mirrors: Mirrors, *, now: float) -> HeldCopy:
    """Every frame that waits in one outbox; they are not copied themselves, as they never change."""
    address = str(next_hop(outbox, mirrors))
    return HeldCopy(tuple(outbox.held.pieces()), now, address, why_held(outbox, peers, mirrors))


def held_values(held: Held, copy: HeldCopy) -> dict[str, object]:
    """
    The columns of one frame of a copy by name.

    Shape: times in whole seconds, as the original's.
    """
    return {
        **frame_values(held.frame),
        "adjacent_broker_address": copy.address,
        "time_consumed": held.time_consumed(copy.now) // 1000,
        "why_held": copy.why,
        "held_ms": held.waited_ms(copy.now),
        "frame_bytes": len(held.frame),
    }


def frame_values(frame: Buffer) -> dict[str, object]:
    """
    What the beginning of a frame tells, by column, as received; also of one that is malformed behind its length.

    Shape: what is left of a life in whole seconds; one shorter than a second still counts as one.
    """
    (
        _,
        _,
        flags,
        hop_count,
        hop_limit,
        time_to_live,
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
        "to_service_name": bytes(frame[HEADER_BYTES:names_at]).decode(errors="replace"),
        "to_broker_instance": None if to_instance == NO_GUID else uuid.UUID(bytes=to_instance),
        "from_service_name": bytes(frame[names_at : names_at + from_length]).decode(errors="replace"),
        "from_broker_instance": None if from_instance == NO_GUID else uuid.UUID(bytes=from_instance),
        "message_sequence_number": sequence,
        "message_fragment_number": fragment,
        "hops_remaining": max(0, hop_limit - hop_count),
        "time_to_live": -(-time_to_live // 1000),
        "message_id": uuid.UUID(bytes=message_id),
    }
