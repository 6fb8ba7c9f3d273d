"""
What the load generator sends: frames of one length, made once, and a HELLO for each of its connections.

Frames to one service belong to one conversation; all frames together have different message ids and sequence numbers,
because a gateway drops a copy of a frame that it still holds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from broker.protocol.frame import Header, Hello, encode_dialog, encode_link
from broker.protocol.layout import Flag, FrameKind

STAMP_BYTES = 8  # of the body, where the generator writes when the message was due
SET_BYTES = 2 * 1024 * 1024  # of different frames, at least: about what stays in the processor's own cache
FRAMES_A_CONNECTION = 10  # at least: what one of a thousand connections brings in one read
HEARTBEAT_MS = 3_600_000  # the generator sends nothing while it waits for its turn


@dataclass(frozen=True, slots=True)
class Traffic:
    """Shape: `frames` of `frame_bytes` each, `stamp_at` in each of them; `greetings` of `greeting_bytes` each."""

    frames: bytes
    frame_bytes: int
    stamp_at: int
    greetings: bytes
    greeting_bytes: int


def service_names(count: int) -> list[str]:
    """Names of services, all equally long. Shape: `count` 1 .. 1,000,000."""
    return [f"//bench/service-{number:06d}" for number in range(count)]


def traffic(services: Sequence[str], payload: int, *, connections: int, listeners: int) -> Traffic:
    """
    Frames to these services, equally many to each, in random order.

    Shape: `payload` bytes, at least `STAMP_BYTES`; names of equal length.
    """
    sample = len(_frames(services[:1], payload, 1)[0])
    wanted = max(SET_BYTES // sample, connections * FRAMES_A_CONNECTION, len(services))
    made = _frames(services, payload, -(-wanted // len(services)) * len(services))
    greetings = [hello() for _ in range(connections + listeners)]
    return Traffic(b"".join(made), sample, sample - payload, b"".join(greetings), len(greetings[0]))


def frames(services: Sequence[str], payload: int, *, count: int) -> bytes:
    """So many different frames to these services, one behind the other. Shape: `payload` bytes."""
    return b"".join(_frames(services, payload, count))


def hello() -> bytes:
    """A HELLO of a stranger without addresses, who need not be heard of for hours."""
    return encode_link(
        Hello(instance=uuid4().bytes, arbitration=uuid4().bytes, name="bench", heartbeat_ms=HEARTBEAT_MS)
    )


def _frames(services: Sequence[str], payload: int, count: int) -> list[bytes]:
    body = os.urandom(payload)
    ends = [(service, uuid4().bytes, uuid4().bytes) for service in services]
    sender = uuid4().bytes
    order = [ends[number % len(ends)] for number in range(count)]
    random.Random(7).shuffle(order)  # noqa: S311 - the same order in every run, no secret
    return [
        encode_dialog(
            Header(
                kind=FrameKind.MESSAGE,
                flags=Flag.LAST_FRAGMENT,
                message_id=(number + 1).to_bytes(16, "big"),
                conversation_id=conversation,
                to_service=service,
                from_service="//bench/initiator",
                from_broker_instance=sender,
                to_broker_instance=instance,
                sequence_number=number,
            ),
            body,
        )
        for number, (service, conversation, instance) in enumerate(order)
    ]
