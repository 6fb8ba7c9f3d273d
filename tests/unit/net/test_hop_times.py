"""Frames that come through a link are counted by how long they are here, whatever becomes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.forwarding.forwarder import Forwarder
from broker.forwarding.latency import BOUNDS, REST_SECONDS, SHARED_FRAMES, HopTimes
from tests.support.link import LinkEnds, message
from tests.support.played import PlayedLoop


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


def told(forwarder: Forwarder) -> dict[float, int]:
    """Frames by the bound they are below."""
    forwarder.hop.count_pending()
    bounds = [*BOUNDS, float("inf")]
    return {bound: count for bound, count in zip(bounds, forwarder.hop.counts, strict=True) if count}


async def test_frames_of_one_read_are_counted_together(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(b"".join(message(sequence_number=number) for number in range(4)))

    assert told(ends.forwarder) == {BOUNDS[0]: 4}
    assert len(ends.delivered) == 4


async def test_lone_frames_that_follow_close_share_one_time(ends: LinkEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.go_online()
    timed: list[float] = []
    handed_over = HopTimes.handed_over

    def watched(times: HopTimes, *args: Any) -> None:
        timed.append(args[0])
        handed_over(times, *args)

    monkeypatch.setattr(HopTimes, "handed_over", watched)

    for number in range(3 * SHARED_FRAMES + 1):
        ends.sock.feed(message(sequence_number=number))

    assert len(timed) == 3
    assert sum(told(ends.forwarder).values()) == 3 * SHARED_FRAMES + 1


async def test_lone_frame_after_a_rest_is_timed(ends: LinkEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.go_online()
    timed: list[float] = []
    handed_over = HopTimes.handed_over

    def watched(times: HopTimes, *args: Any) -> None:
        timed.append(args[0])
        handed_over(times, *args)

    monkeypatch.setattr(HopTimes, "handed_over", watched)

    for number in range(3):
        await asyncio.sleep(2 * REST_SECONDS)
        ends.sock.feed(message(sequence_number=number))

    assert len(timed) == 3


async def test_frame_that_waits_is_counted_when_it_leaves_with_its_time(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.sock.feed(message(to_service="//far") + message(sequence_number=1))
    assert told(ends.forwarder) == {BOUNDS[0]: 1}
    outbox = next(iter(ends.forwarder.table.outboxes.values()))
    outbox.outlet = Taking()

    outbox.drain(loop.time() + 0.7)

    assert told(ends.forwarder) == {BOUNDS[0]: 1, 1.0: 1}
    assert ends.forwarder.hop.seconds == pytest.approx(0.7)


async def test_frames_that_came_at_different_times_are_told_apart(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.sock.feed(message(to_service="//far") + message(to_service="//far", sequence_number=1))
    await asyncio.sleep(10)
    ends.sock.feed(message(to_service="//far", sequence_number=2))
    outbox = next(iter(ends.forwarder.table.outboxes.values()))
    outbox.outlet = Taking()

    outbox.drain(loop.time() + 0.2)

    assert told(ends.forwarder) == {0.25: 1, 30.0: 2}


class Taking:
    """An outlet that takes everything."""

    max_frame = 1 << 20
    is_narrow = False
    can_send = True

    def send(self, data: Any) -> int:
        return len(data)

    def finish(self, rest: Any) -> None:
        raise AssertionError("takes everything at once")
