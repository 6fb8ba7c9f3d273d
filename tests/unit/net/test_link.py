"""One link from HELLO to its end, as a transcript of what the socket brings and takes."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from broker.errors import FrameMalformedError, HandshakeRefusedError, PeerSilentError
from broker.forwarding.entry import CARE_MAX
from broker.net.link import CONTROL_MAX_BYTES, LINGER_SECONDS, LinkState
from broker.protocol.frame import Fatal, Hello, Ping, Pong, Rejected, encode_link
from broker.protocol.link_state import PEER_NAME_MAX
from tests.support.link import HANDSHAKE, HELLO, OWN, PEER, PING, LinkEnds, message
from tests.support.played import PlayedLoop


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


# --- HELLO ---


async def test_both_sides_say_hello_at_once_and_are_online_when_it_came(ends: LinkEnds) -> None:
    ends.start()
    assert (LinkState.CONNECTED, [OWN], "") == (ends.link.state, ends.said(), ends.link.peer_name)

    ends.sock.feed(HELLO)

    assert (LinkState.LOGGED_IN, ["online"]) == (ends.link.state, ends.told)
    assert (PEER, PEER.max_frame, "peer") == (ends.link.agreement.peer, ends.link.max_frame, ends.link.peer_name)  # type: ignore[union-attr]
    assert (ends.link.can_send, ends.link.is_narrow) == (True, False)


async def test_peer_that_takes_less_than_we_do_is_narrow(ends: LinkEnds) -> None:
    ends.go_online(max_frame=4096, name="x" * 1000)

    assert (4096, True, PEER_NAME_MAX) == (ends.link.max_frame, ends.link.is_narrow, len(ends.link.peer_name))


@pytest.mark.parametrize("piece", [1, 3, 100, 1 << 20])
async def test_hello_and_all_behind_it_may_come_in_any_pieces(piece: int, ends: LinkEnds) -> None:
    frames = [message(b"x" * 300, sequence_number=n) for n in range(3)]
    ends.start()

    ends.sock.feed(HELLO + frames[0] + PING + frames[1] + frames[2], piece=piece)

    assert [frame[:6] for frame in frames] == [frame[:6] for frame in ends.delivered]
    assert [OWN, Pong(b"12345678")] == ends.said()
    assert ends.link.received == {0x10: 3}


@pytest.mark.parametrize(
    ("first", "number"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 28042),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 28042),
        (b"\x00\x00\x00\x10\x09\x00\x00\x00", 28041),
        (message(), 28043),
        (PING, 28043),
        (encode_link(Hello(protocol="other")), 28034),
        (b"\x00\x00\x00\x0c\x01\x00\x00\x00abcd", 28041),
    ],
    ids=["http", "tls", "unknown kind", "dialog frame", "ping", "other protocol", "no map"],
)
async def test_stranger_is_told_what_is_wrong_and_closed(first: bytes, number: int, ends: LinkEnds) -> None:
    ends.start()

    ends.sock.feed(first)

    last = ends.said()[-1]
    assert isinstance(last, Fatal)
    assert (number, ["lost"], True) == (last.code, ends.told, ends.sock.shut)
    await asyncio.sleep(LINGER_SECONDS)
    assert (LinkState.CLOSED, ["lost", "closed"], True) == (ends.link.state, ends.told, ends.sock.is_closed)


@pytest.mark.parametrize(
    ("first", "number"),
    [(b"\xff\xff\xff\xff", 28042), (b"\x00\x00\x00\x07", 28041), (b"\x00\x00\x00\x10\x09", 28041)],
    ids=["too long", "too short", "unknown kind"],
)
@pytest.mark.parametrize("is_online", [False, True])
async def test_frame_is_refused_on_the_fewest_bytes(
    first: bytes,
    number: int,
    is_online: bool,  # noqa: FBT001 - a parameter of the test
    ends: LinkEnds,
) -> None:
    if is_online:
        ends.go_online()
    else:
        ends.start()

    ends.sock.feed(first, piece=1)

    last = ends.said()[-1]
    assert isinstance(last, Fatal)
    assert number == last.code


async def test_kind_before_hello_is_not_judged_before_it_is_there(ends: LinkEnds) -> None:
    ends.start()
    ends.forwarder.slab[4] = 0x10  # what another link left there

    ends.sock.feed(HELLO[:4])
    ends.sock.feed(HELLO[4:])

    assert LinkState.LOGGED_IN == ends.link.state


async def test_silence_before_hello_is_closed_in_time(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.start()

    ends.link.tick(HANDSHAKE - 0.1)
    assert ends.told == []
    ends.link.tick(HANDSHAKE)

    assert (HandshakeRefusedError, ["lost"]) == (type(ends.link.error), ends.told)


async def test_peer_that_answers_hello_with_fatal_is_told_to_the_owner(ends: LinkEnds) -> None:
    ends.start()

    ends.sock.feed(encode_link(Fatal(code=1, text="no")))

    (event,) = ends.told
    assert "Ended" == type(event).__name__


async def test_owner_that_closes_on_hello_hears_of_nothing_behind_it(ends: LinkEnds, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "on_online", lambda link: link.close("to itself"))
    ends.start()

    ends.sock.feed(HELLO + message() + PING)

    assert ([], ["lost", "closed"], "to itself") == (ends.delivered, ends.told, ends.link.reason)


# --- writing ---


async def test_cut_frame_is_finished_before_anything_else(ends: LinkEnds) -> None:
    ends.go_online()
    frames = message(sequence_number=1), message(sequence_number=2)
    ends.sock.room = 30

    sent = ends.link.send(frames[0])
    ends.link.finish(memoryview(frames[0])[sent:])
    ends.sock.feed(PING)
    assert (30, False, True) == (sent, ends.link.can_send, ends.link.is_blocked)
    for _ in range(20):
        ends.sock.breathe(20)

    assert frames[0] + encode_link(Pong(b"12345678")) == ends.sock.written
    assert (["writable"], True, False) == (ends.told, ends.link.can_send, ends.link.is_blocked)
    assert ends.loop.writers == {}


async def test_full_socket_takes_nothing_and_says_when_it_does(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.room = 0

    sent = ends.link.send(message())
    ends.sock.breathe()

    assert (0, ["writable"], b"") == (sent, ends.told, ends.sock.written)


async def test_hello_to_a_full_socket_waits_for_room(ends: LinkEnds) -> None:
    ends.start(room=5)

    ends.sock.breathe()

    assert [OWN] == ends.said()


async def test_counters_tell_what_was_moved(ends: LinkEnds) -> None:
    ends.start()
    ends.sock.feed(HELLO)
    ends.link.send(message())

    sent, received = len(encode_link(OWN)) + len(message()), len(HELLO)
    link = ends.link
    assert (2, sent, 1, received) == (link.sends, link.bytes_sent, link.receives, link.bytes_received)


async def test_connection_lost_while_writing_closes_after_the_pass(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.problem = errno.EPIPE

    sent = ends.link.send(message())
    assert (0, [], False) == (sent, ends.told, ends.link.can_send)
    await asyncio.sleep(0)

    assert (["lost", "closed"], "Broken pipe") == (ends.told, ends.link.reason)


async def test_connection_lost_while_reading_closes(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.fail()

    assert (["lost", "closed"], "Connection reset by peer") == (ends.told, ends.link.reason)


async def test_readiness_without_data_changes_nothing(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.read()

    assert (LinkState.LOGGED_IN, []) == (ends.link.state, ends.told)


# --- advice ---


async def test_dropped_frame_is_advised(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(message(to_service="//nobody", sequence_number=9))

    assert [Rejected(b"m" * 16, b"c" * 16, 9, 0, 9798, "no route")] == ends.said()
    assert ends.link.frames_rejected == 1


@pytest.mark.parametrize("frame", [message(to_service="//nobody"), PING], ids=["advice", "replies"])
async def test_what_waits_for_a_peer_that_does_not_read_has_a_bound(frame: bytes, ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.room = 0

    for _ in range(100):
        ends.sock.feed(frame * 100)
        ends.link.tick(ends.loop.time())
    ends.sock.breathe()

    assert 0 < len(ends.sock.written) <= CONTROL_MAX_BYTES + 1000
    assert {type(said) for said in ends.said()} <= {Pong, Rejected, Ping}


async def test_flood_of_pings_is_answered_with_one_write(ends: LinkEnds) -> None:
    ends.go_online()
    before = ends.link.sends

    ends.sock.feed(PING * CARE_MAX)

    assert ([Pong(b"12345678")] * CARE_MAX, before + 1) == (ends.said(), ends.link.sends)


async def test_no_ping_is_added_to_what_a_stalled_peer_does_not_take(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.sock.room = 0
    ends.sock.feed(PING * (CONTROL_MAX_BYTES // len(PING) + 10))
    await asyncio.sleep(1)
    waiting = len(ends.link._control)

    ends.link.tick(loop.time() + 3)

    assert waiting == len(ends.link._control)


async def test_whatever_is_said_has_the_same_bound_but_for_the_last_words(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.room = 0

    for _ in range(CONTROL_MAX_BYTES):
        ends.link.say(PING)
    ends.link.fail(FrameMalformedError("enough"))
    ends.sock.breathe()

    assert len(ends.sock.written) <= CONTROL_MAX_BYTES + 1000
    assert isinstance(ends.said()[-1], Fatal)


async def test_link_that_failed_while_writing_asks_nobody_for_room(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.room = 0
    ends.link.send(message())
    ends.link.finish(message())
    ends.sock.problem = errno.EPIPE

    ends.sock.breathe()
    ends.link.say(PING)
    ends.link.tick(ends.loop.time() + 3)
    await asyncio.sleep(0)

    assert (["lost", "closed"], {}) == (ends.told, ends.loop.writers)


async def test_loop_is_asked_again_to_tell_of_a_socket_that_was_read(ends: LinkEnds) -> None:
    ends.go_online()
    assert 1 == ends.heard

    ends.sock.feed(PING)
    assert 1 == ends.heard
    del ends.loop.readers[ends.sock]
    ends.link.renew()
    ends.sock.feed(PING)

    assert (2, [Pong(b"12345678")] * 2) == (ends.heard, ends.said())


async def test_paused_or_closed_link_is_not_read_because_it_was_renewed(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()

    ends.link.pause()
    ends.link.renew()
    assert {} == loop.readers
    ends.link.resume()
    ends.link.close("over")
    ends.link.renew()

    assert {} == loop.readers


async def test_paused_link_is_not_read_until_everybody_lets_it_go_on(ends: LinkEnds) -> None:
    ends.go_online()

    ends.link.pause()
    ends.link.pause()
    ends.sock.feed(message(to_service="//here"))
    ends.link.resume()
    ends.sock.read()
    assert ([], True) == (ends.delivered, ends.link.is_paused)
    ends.link.resume()
    ends.sock.read()

    assert (1, False) == (len(ends.delivered), ends.link.is_paused)


async def test_link_closed_while_it_pauses_stays_closed(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()

    ends.link.pause()
    ends.link.close("over")
    ends.link.resume()

    assert ({}, True) == (loop.readers, ends.sock.is_closed)


async def test_closed_link_can_be_told_to_pause(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()

    ends.link.close("over")
    ends.link.pause()
    ends.link.resume()

    assert ({}, True) == (loop.readers, ends.sock.is_closed)


async def test_link_whose_peer_has_ended_is_not_read_again_after_a_pause(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.sock.room = 0
    ends.link.say(PING)
    ends.sock.end()

    ends.link.pause()
    ends.link.resume()

    assert ({}, LinkState.LINGERING) == (loop.readers, ends.link.state)


async def test_peer_that_is_not_listened_to_is_not_silent(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.link.pause()

    ends.link.tick(loop.time() + 60.0)

    assert (None, LinkState.LOGGED_IN) == (ends.link.error, ends.link.state)


# --- time ---


async def test_heartbeat_is_said_after_silence_and_silence_of_the_peer_ends_the_link(
    ends: LinkEnds, loop: PlayedLoop
) -> None:
    ends.go_online()
    silent_for = ends.link.connection.heartbeat

    ends.link.tick(loop.time())
    assert ends.said() == []
    ends.link.tick(loop.time() + silent_for)
    assert ["Ping"] == [type(said).__name__ for said in ends.said()]
    ends.link.tick(loop.time() + 6.0)

    assert (PeerSilentError, LinkState.LINGERING) == (type(ends.link.error), ends.link.state)


async def test_peer_that_is_heard_is_not_silent(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()

    for _ in range(3):
        await asyncio.sleep(5.9)
        ends.sock.feed(PING)
        ends.link.tick(loop.time())

    assert (LinkState.LOGGED_IN, None) == (ends.link.state, ends.link.error)


async def test_ended_link_has_no_heartbeat(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.link.drain()
    ends.link.tick(loop.time() + 100)
    ends.link.close("over")
    ends.link.tick(loop.time() + 200)

    assert (b"", None) == (ends.sock.written, ends.link.error)
