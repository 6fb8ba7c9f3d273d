from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from broker.observe.snapshot import HeldCopy, copy_held, held_values
from broker.protocol.layout import Flag
from tests.support.pack import pack_of

ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"


@pytest.fixture
async def gateway(start: Any) -> Any:
    return await start("gateway", msdb=ROUTE)


def _held(gateway: Any, *, after: float = 0.0) -> dict[str, object]:
    (outbox,) = gateway.forwarder.outboxes.values()
    now = asyncio.get_running_loop().time() + after
    copy = copy_held(outbox, gateway.peers, gateway.mirrors, now=now)
    (held,) = copy.frames
    return held_values(held, copy)


async def test_frame_is_shown_with_every_column(gateway: Any, take: Any) -> None:
    take(gateway, sequence_number=7, fragment_number=2, hop_limit=16, hop_count=3)

    values = _held(gateway)

    why = values.pop("why_held")
    assert isinstance(why, str)
    assert why.startswith("waiting for a connection to tcp://127.0.0.1:1")
    assert values == {
        "conversation_id": uuid.UUID(int=2),
        "is_initiator": True,
        "to_service_name": "//far",
        "to_broker_instance": None,
        "from_service_name": "//near",
        "from_broker_instance": uuid.UUID(int=3),
        "adjacent_broker_address": "tcp://127.0.0.1:1",
        "message_sequence_number": 7,
        "message_fragment_number": 2,
        "hops_remaining": 12,
        "time_to_live": 60,
        "time_consumed": 0,
        "message_id": uuid.UUID(int=1),
        "held_ms": values["held_ms"],
        "frame_bytes": 114 + len("//far") + len("//near") + len("body"),
    }


async def test_answer_of_a_target_to_one_instance(gateway: Any, take: Any) -> None:
    take(gateway, flags=Flag.FROM_TARGET, to_broker_instance=bytes(15) + b"\4")

    values = _held(gateway)

    assert (False, uuid.UUID(int=4)) == (values["is_initiator"], values["to_broker_instance"])


async def test_wait_counts_as_life(gateway: Any, take: Any) -> None:
    take(gateway, time_to_live=60_000, time_consumed=1_500)

    values = _held(gateway, after=10.0)

    assert (60, 11) == (values["time_to_live"], values["time_consumed"])
    assert 10_000 <= int(str(values["held_ms"])) < 12_000


async def test_short_life_is_not_shown_as_none(gateway: Any, take: Any) -> None:
    take(gateway, time_to_live=900)

    assert _held(gateway)["time_to_live"] == 1


async def test_unspecified_sender_is_null(gateway: Any, take: Any) -> None:
    take(gateway, from_broker_instance=bytes(16))

    assert _held(gateway)["from_broker_instance"] is None


async def test_name_that_is_no_text_is_shown_anyhow(gateway: Any, take: Any) -> None:
    """The pass reads the name of the sender not at all, so it may be anything."""
    take(gateway, from_service="ab")
    (outbox,) = gateway.forwarder.outboxes.values()
    (held,) = outbox.held
    odd = held._replace(frame=held.frame.replace(b"ab", b"\xff\xfe"))

    values = held_values(odd, HeldCopy((odd,), held.since, "tcp://127.0.0.1:1", "because"))

    assert values["from_service_name"] == "\ufffd\ufffd"


async def test_frames_that_wait_together_are_told_of_one_by_one(gateway: Any, take: Any) -> None:
    take(gateway, sequence_number=1)
    (outbox,) = gateway.forwarder.outboxes.values()
    (held,) = outbox.held
    pack = pack_of([held.frame, held.frame + b"x"], held.since)

    copy = HeldCopy((held, pack), held.since, "tcp://127.0.0.1:1", "because")

    assert [len(held.frame) + more for more in (0, 0, 1)] == [
        held_values(one, copy)["frame_bytes"] for one in copy.frames
    ]


async def test_empty_outbox_has_nothing_to_copy(gateway: Any) -> None:
    from broker.routing.address import NetworkAddress

    outbox = gateway.forwarder.outbox(NetworkAddress("far.example"))

    assert copy_held(outbox, gateway.peers, gateway.mirrors, now=0.0).pieces == ()
