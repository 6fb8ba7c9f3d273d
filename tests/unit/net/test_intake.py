"""What a link brings is passed on whole, in order and in time, so much in one turn."""

from __future__ import annotations

import asyncio

import pytest

from broker.forwarding.entry import CARE_MAX
from broker.forwarding.pool import READ_BYTES
from broker.net.link import SMALL_READ_BYTES, LinkState
from broker.protocol.frame import Fatal, GoAway, Rejected, encode_link
from broker.protocol.layout import FRAME_BYTES_PER_SECOND, FRAME_SECONDS
from broker.protocol.link_state import Ended, RejectedBy
from tests.support.link import HELLO, PING, LinkEnds, message
from tests.support.played import PlayedLoop

SPENT = message(to_service="//here", hop_count=200)
MORE = 3 * CARE_MAX + 5  # frames that take four turns


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


async def turns(ends: LinkEnds, *, left: int = 0) -> int:
    """Let everything that is kept be passed on, but so many bytes; the turns that took."""
    count = 0
    while ends.link.kept_bytes > left:
        assert ends.sock not in ends.loop.readers
        count += 1
        await asyncio.sleep(0)
    return count


# --- so much in one turn ---


@pytest.mark.parametrize(
    "frame",
    [PING, encode_link(Rejected()), encode_link(GoAway()), SPENT, message(to_service="//here", time_to_live=0)],
    ids=["ping", "rejected", "goaway", "hops", "lifetime"],
)
async def test_what_needs_care_is_taken_care_of_some_in_a_turn(frame: bytes, ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(frame * MORE)

    assert (MORE - CARE_MAX) * len(frame) == ends.link.kept_bytes
    assert 3 == await turns(ends)
    assert ends.sock in ends.loop.readers


async def test_order_is_kept_over_the_turns_and_nothing_is_lost(ends: LinkEnds) -> None:
    ends.go_online()
    advice = [encode_link(Rejected(sequence=number)) for number in range(MORE)]
    frames = [message(sequence_number=number) for number in range(MORE)]

    ends.sock.feed(b"".join(part for pair in zip(advice, frames, strict=True) for part in pair) + frames[0][:50])
    await turns(ends, left=50)
    ends.sock.feed(frames[0][50:])

    assert [RejectedBy(Rejected(sequence=number)) for number in range(MORE)] == ends.told
    assert [frame[48:56] for frame in [*frames, frames[0]]] == [frame[48:56] for frame in ends.delivered]
    assert ends.forwarder.unfinished.kept_bytes == 0


async def test_new_link_has_its_turns_as_well(ends: LinkEnds) -> None:
    ends.start()

    ends.sock.feed(HELLO + PING * MORE)

    assert 3 == await turns(ends)


async def test_link_with_more_than_a_turns_work_is_read_in_small_pieces_until_it_has_less(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(PING * MORE)
    await turns(ends)
    start = ends.link.bytes_received
    plain = message(bytes(1000))

    sizes = []
    ends.sock.feed(plain * (READ_BYTES // len(plain)) * 3)
    for _ in range(4):
        sizes.append(ends.link.bytes_received - start)
        start = ends.link.bytes_received
        ends.sock.read()

    assert [2 * SMALL_READ_BYTES, 4 * SMALL_READ_BYTES, READ_BYTES, READ_BYTES] == sizes


async def test_paused_link_has_no_turn(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(PING * MORE)
    kept = ends.link.kept_bytes

    ends.link.pause()
    for _ in range(10):
        await asyncio.sleep(0)
    ends.link.renew()
    assert (kept, {}) == (ends.link.kept_bytes, ends.loop.readers)
    ends.link.tick(ends.loop.time() + 1000)
    ends.link.resume()

    assert 3 == await turns(ends)
    assert LinkState.LOGGED_IN is ends.link.state


async def test_link_that_is_closed_between_turns_has_none_any_more(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(SPENT * MORE)
    dropped = ends.forwarder.dropped.total()

    ends.link.close("over")
    await asyncio.sleep(1)

    assert (dropped, 0, 0) == (
        ends.forwarder.dropped.total(),
        ends.link.kept_bytes,
        ends.forwarder.unfinished.kept_bytes,
    )


async def test_link_that_fails_in_a_later_turn_is_heard_out(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(PING * MORE + b"\xff" * 100)

    await asyncio.sleep(0.1)

    assert (LinkState.LINGERING, 0) == (ends.link.state, ends.forwarder.unfinished.kept_bytes)
    assert ends.sock in ends.loop.readers
    ends.sock.end()
    assert LinkState.CLOSED is ends.link.state


async def test_bug_in_a_later_turn_is_told_to_the_owner(ends: LinkEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Exception] = []
    monkeypatch.setattr(ends, "on_failed", lambda _, error: failed.append(error))
    ends.go_online()
    ends.sock.feed(PING * MORE)

    def fail(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(ends.forwarder, "take", fail)
    await asyncio.sleep(0.1)

    assert ["a bug"] == [str(error) for error in failed]


async def test_last_word_of_the_peer_is_the_last(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(message() + encode_link(Fatal(text="bye")) + message() + PING)

    assert (1, [Ended(Fatal(text="bye"))]) == (len(ends.delivered), ends.told)


# --- in time ---


async def test_frame_has_to_be_complete_in_time_that_goes_by_its_length(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    frame = message(bytes(8000))
    seconds = FRAME_SECONDS + len(frame) / FRAME_BYTES_PER_SECOND
    begin = loop.time()
    ends.sock.feed(frame[:3])
    for at in range(3, int(seconds)):
        await asyncio.sleep(1)
        ends.sock.feed(frame[at : at + 1])

    ends.link.tick(begin + seconds - 0.01)
    assert LinkState.LOGGED_IN is ends.link.state
    ends.link.tick(begin + seconds)

    assert "frame of 8126 bytes, not complete within 10 s" in str(ends.link.error)


async def test_each_frame_has_its_own_time(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    frame = message(bytes(8000))

    ends.sock.feed(frame[:100])
    for _ in range(10):
        await asyncio.sleep(FRAME_SECONDS - 1)
        ends.sock.feed(frame[100:] + frame[:100])
        ends.link.tick(loop.time())

    assert (None, 10) == (ends.link.error, len(ends.delivered))


async def test_time_in_which_it_is_not_listened_to_does_not_count(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.sock.feed(message()[:100])
    ends.link.pause()
    await asyncio.sleep(100)
    ends.link.tick(loop.time())

    ends.link.resume()
    ends.link.tick(loop.time() + 5)

    assert None is ends.link.error


async def test_what_is_kept_of_a_frame_that_is_refused_counts_no_more(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(message()[:3])
    assert 3 == ends.forwarder.unfinished.kept_bytes

    ends.sock.feed(b"\x01" * 100)

    assert (LinkState.LINGERING, 0) == (ends.link.state, ends.forwarder.unfinished.kept_bytes)
