"""How a link ends: last words, drained, left, broken or simply closed."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.errors import FrameMalformedError
from broker.net.link import LINGER_BYTES, LINGER_SECONDS, LinkState
from broker.protocol.frame import Fatal, GoAway, Pong, encode_link
from broker.protocol.link_state import PeerLeaving
from tests.support.link import HANDSHAKE, PING, LinkEnds, message
from tests.support.played import PlayedLoop


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


async def test_frames_before_bytes_that_are_none_are_taken(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(message() + PING + b"\xff" * 10 + message())

    assert (1, "FrameTooLargeError") == (len(ends.delivered), type(ends.link.error).__name__)
    assert [Pong, Fatal] == [type(said) for said in ends.said()]
    assert not ends.link.can_send


async def test_broken_link_frame_ends_the_link(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(b"\x00\x00\x00\x0c\x06\x00\x00\x00abcd")

    assert isinstance(ends.link.error, FrameMalformedError)
    assert str(ends.link.error) == ends.link.reason


async def test_last_words_wait_behind_a_cut_frame_for_a_moment(ends: LinkEnds) -> None:
    ends.go_online()
    frame = message()
    ends.sock.room = 10
    ends.link.send(frame)
    ends.link.finish(frame[10:])

    ends.sock.feed(b"\xff" * 10)
    assert (["lost"], False) == (ends.told, ends.sock.shut)
    ends.sock.breathe()

    assert frame == ends.sock.written[: len(frame)]
    assert ([Fatal], True) == ([type(said) for said in ends.said()], ends.sock.shut)
    ends.sock.end()
    assert ["lost", "closed"] == ends.told


async def test_lingering_link_reads_only_so_much_and_says_nothing_more(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(b"\xff" * 10)
    said = ends.sock.written

    ends.link.fail(FrameMalformedError("again"))
    ends.link.send_control(PING)
    ends.link.drain(1)
    ends.sock.feed(PING * (LINGER_BYTES // len(PING)), piece=1 << 16)
    assert LinkState.LINGERING is ends.link.state
    ends.sock.feed(PING * 100)

    assert (LinkState.CLOSED, said, ["lost", "closed"]) == (ends.link.state, ends.sock.written, ends.told)


async def test_close_is_told_once(ends: LinkEnds) -> None:
    ends.go_online()

    ends.link.close("first")
    ends.link.close("second")
    ends.link.fail(FrameMalformedError("third"))

    assert ("first", ["lost", "closed"], {}) == (ends.link.reason, ends.told, ends.loop.readers)


async def test_peer_that_closes_ends_the_link(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.end()

    assert ("closed by the peer", ["lost", "closed"]) == (ends.link.reason, ends.told)


async def test_peer_that_shuts_its_direction_gets_the_rest_of_a_cut_frame(ends: LinkEnds) -> None:
    ends.go_online()
    frame = message()
    ends.sock.room = 10
    ends.link.send(frame)
    ends.link.finish(frame[10:])

    ends.sock.end()
    assert (["lost"], {}) == (ends.told, ends.loop.readers)
    ends.sock.breathe()
    await asyncio.sleep(0)

    assert (frame, ["lost", "closed"]) == (ends.sock.written, ends.told)


async def test_drained_link_hears_its_peer_until_that_closes(ends: LinkEnds) -> None:
    ends.go_online()

    ends.link.drain()
    ends.link.drain()
    ends.sock.feed(message() + PING)
    assert (LinkState.DRAINING, True, 1, b"") == (
        ends.link.state, ends.sock.shut, len(ends.delivered), ends.sock.written
    )  # fmt: skip
    ends.sock.end()

    assert ["lost", "closed"] == ends.told


async def test_drained_link_whose_peer_breaks_the_rules_is_lost(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.drain()

    ends.sock.feed(b"\xff" * 10)
    ends.sock.end()

    assert (b"", ["lost", "closed"]) == (ends.sock.written, ends.told)
    assert "FrameTooLargeError" == type(ends.link.error).__name__


async def test_drained_link_is_shut_only_when_a_cut_frame_is_out(ends: LinkEnds) -> None:
    ends.go_online()
    frame = message()
    ends.sock.room = 10
    ends.link.send(frame)
    ends.link.finish(frame[10:])

    ends.link.drain()
    assert not ends.sock.shut
    ends.sock.breathe()

    assert (frame, True, []) == (ends.sock.written, ends.sock.shut, ends.told)


async def test_drained_link_is_closed_when_the_peer_never_does(ends: LinkEnds) -> None:
    ends.go_online()

    ends.link.drain()
    await asyncio.sleep(HANDSHAKE)

    assert ("drained", ["lost", "closed"]) == (ends.link.reason, ends.told)


async def test_link_that_cannot_be_shut_is_closed(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.problem = errno.ENOTCONN

    ends.link.drain()
    await asyncio.sleep(0)

    assert LinkState.CLOSED is ends.link.state


async def test_leaving_peer_is_heard_after_our_direction_is_closed_for_so_long(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(encode_link(GoAway(reason="upgrade", deadline_ms=500)))

    ends.link.drain(5)
    ends.sock.feed(message() + PING)

    assert [PeerLeaving(GoAway(reason="upgrade", deadline_ms=500))] == ends.told
    assert (False, True, 1, []) == (ends.link.can_send, ends.sock.shut, len(ends.delivered), ends.said())
    await asyncio.sleep(4.9)
    assert LinkState.DRAINING is ends.link.state
    await asyncio.sleep(0.2)
    assert ("drained", LinkState.CLOSED) == (ends.link.reason, ends.link.state)


async def test_peer_that_has_ended_its_direction_is_not_taken_for_silent_and_still_gets_frames(
    ends: LinkEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.go_online()
    monkeypatch.setattr(ends, "on_eof", lambda _: None)

    ends.sock.end()
    ends.link.tick(ends.link.connection.last_heard + 3600.0)

    assert (True, True, LinkState.LOGGED_IN) == (ends.link.has_peer_finished, ends.link.can_send, ends.link.state)
    ends.link.drain()
    await asyncio.sleep(0)
    assert LinkState.CLOSED is ends.link.state


async def test_link_ends_in_order_when_the_peer_leaves_and_nothing_breaks(ends: LinkEnds) -> None:
    ends.go_online()
    assert not ends.link.left_cleanly

    ends.link.is_peer_draining = True
    ends.link.drain()
    ends.sock.end()

    assert (True, LinkState.CLOSED) == (ends.link.left_cleanly, ends.link.state)


async def test_link_that_breaks_is_not_in_order_though_the_peer_was_leaving(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.is_peer_draining = True

    ends.sock.fail()

    assert not ends.link.left_cleanly


async def test_end_that_comes_earlier_replaces_the_later_one(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.drain(60)

    ends.link.fail(FrameMalformedError("meanwhile"))
    await asyncio.sleep(LINGER_SECONDS)

    assert LinkState.CLOSED is ends.link.state


async def test_bug_while_reading_is_told_to_the_owner(ends: LinkEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Exception] = []
    monkeypatch.setattr(ends, "on_bug", lambda _, error: failed.append(error))
    ends.go_online()

    def fail(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(ends.forwarder, "forward", fail)
    ends.sock.feed(message())

    assert ["a bug"] == [str(error) for error in failed]


async def test_link_without_hello_does_not_drain(ends: LinkEnds) -> None:
    ends.start()

    ends.link.drain()

    assert (LinkState.CONNECTED, False) == (ends.link.state, ends.sock.shut)
