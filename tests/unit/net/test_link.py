"""One link from HELLO to its end, as a transcript of what the socket brings and takes."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import FrameMalformedError, HandshakeRefusedError, PeerSilentError
from broker.flow import Disposition
from broker.forwarding.entry import CARE_MAX
from broker.forwarding.pool import READ_BYTES
from broker.net.link import (
    ACTIVE_SECONDS,
    ANSWER_SHARE,
    BLOCKED_SECONDS,
    CONTROL_MAX_BYTES,
    LINGER_SECONDS,
    SMALL_READ_BYTES,
    ActivityState,
    LinkState,
    render_rejected,
)
from broker.net.quotas import Permissions, Permit
from broker.protocol.frame import (
    Fatal,
    GoAway,
    Header,
    Hello,
    Ping,
    Pong,
    Rejected,
    decode_link,
    encode_dialog,
    encode_link,
)
from broker.protocol.layout import FRAME_BYTES_PER_SECOND, FRAME_SECONDS
from broker.protocol.link_state import PEER_NAME_MAX, Ended, RejectedBy
from broker.security.grants import Grants
from broker.security.principal import who_is
from tests.support.link import HANDSHAKE, HELLO, OWN, PEER, PING, LinkEnds, message
from tests.support.played import PlayedLoop

# --- test_advice ---
# Advice names the frame and the reason, and comes at a bounded rate.


HEADER = Header(
    kind=0x10,
    flags=0,
    message_id=b"m" * 16,
    conversation_id=b"c" * 16,
    to_service="t",
    from_service="f",
    from_broker_instance=b"i" * 16,
    sequence_number=2**40 + 1,
    fragment_number=7,
)


def test_rejected_tells_which_frame_and_why() -> None:
    for form in (bytes, bytearray, memoryview):
        frame = form(encode_dialog(replace(HEADER), b"body"))

        rejected = decode_link(render_rejected(frame, Disposition.POOL_LIMIT))

        assert rejected == Rejected(
            message=b"m" * 16,
            conversation=b"c" * 16,
            sequence=2**40 + 1,
            fragment=7,
            code=11289,
            reason="pool limit exceeded",
        )


def test_who_lacks_a_permission_is_told_which() -> None:
    permissions = Permissions()
    permissions.grants = Grants(is_default_deny=True)
    permit = Permit(who_is("CN=a"), permissions.grants.profile(who_is("CN=a")), permissions)

    rejected = decode_link(render_rejected(encode_dialog(HEADER, b""), Disposition.NOT_PERMITTED, permit))

    assert isinstance(rejected, Rejected)
    assert (11215, "not permitted: no GRANT SEND ON SERVICE::[t] TO [CN=a] or public") == (
        rejected.code,
        rejected.reason,
    )
    assert "CN=a may not send: no GRANT SEND ON SERVICE::[t] TO [CN=a] or public" == permissions.last_refusal


# --- test_flow ---
# What a link does is told by what has really moved: a peer that has stopped does not keep it flowing.


HEARTBEAT = OWN.heartbeat_ms / 1000


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


def look(ends: LinkEnds, after: float = 0.0) -> tuple[ActivityState, str]:
    flow = ends.link.activity.update(ends.link, ends.loop.time() + after)
    return flow.state, flow.reason


async def test_link_before_hello_is_opening(ends: LinkEnds) -> None:
    ends.start()

    assert look(ends) == (ActivityState.OPENING, "HELLO of the peer has not come")


async def test_link_that_carries_nothing_is_idle(ends: LinkEnds) -> None:
    ends.go_online()

    assert look(ends, ACTIVE_SECONDS) == (ActivityState.IDLE, "")


async def test_frame_that_came_is_flow_for_a_while(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(message())

    assert [look(ends), look(ends, ACTIVE_SECONDS)] == [(ActivityState.FLOWING, ""), (ActivityState.IDLE, "")]


async def test_frame_that_left_is_flow_for_a_while(ends: LinkEnds) -> None:
    ends.go_online()
    look(ends)
    ends.link.send(message())

    assert [look(ends, 0.5), look(ends, 0.5 + ACTIVE_SECONDS)] == [
        (ActivityState.FLOWING, ""),
        (ActivityState.IDLE, ""),
    ]


async def test_link_frames_are_no_flow(ends: LinkEnds) -> None:
    ends.go_online()
    look(ends)
    look(ends, ACTIVE_SECONDS)
    for _ in range(100):
        ends.link.send_control(encode_link(Pong(bytes(8))))

    assert look(ends, ACTIVE_SECONDS) == (ActivityState.IDLE, "")


async def test_peer_that_does_not_answer_is_stalled_though_it_is_written_to(ends: LinkEnds) -> None:
    ends.go_online()
    now = ends.loop.time()
    ends.link.tick(now + HEARTBEAT)
    ends.link.send(message())
    assert look(ends, HEARTBEAT + 0.01) == (ActivityState.FLOWING, "")

    ends.link.send(message())

    assert look(ends, HEARTBEAT * (1 + ANSWER_SHARE)) == (ActivityState.STALLED, "the peer does not answer")


async def test_peer_that_is_heard_is_not_stalled(ends: LinkEnds) -> None:
    """Its answer may be behind a lot that it sends."""
    ends.go_online()
    now = ends.loop.time()
    ends.link.tick(now + HEARTBEAT)

    ends.link.connection.last_heard = now + HEARTBEAT * 1.4

    assert look(ends, HEARTBEAT * (1 + ANSWER_SHARE))[0] is ActivityState.IDLE


async def test_answer_ends_the_doubt_and_is_progress(ends: LinkEnds) -> None:
    ends.go_online()
    now = ends.loop.time()
    ends.link.tick(now + HEARTBEAT)
    assert look(ends, HEARTBEAT * 2)[0] is ActivityState.STALLED

    ends.sock.feed(encode_link(Pong(b"\0\0\0\0\0\0\0\1")))

    assert look(ends, HEARTBEAT * 2) == (ActivityState.IDLE, "")
    assert ends.link.activity.progress_at == ends.link.connection.last_heard == now


async def test_socket_that_takes_nothing_is_blocked(ends: LinkEnds) -> None:
    ends.go_online()
    look(ends)
    ends.sock.room = 10
    ends.link.send(message())
    assert look(ends)[0] is ActivityState.FLOWING

    assert look(ends, BLOCKED_SECONDS) == (ActivityState.BLOCKED, "the peer takes nothing more")


async def test_link_that_is_not_read_is_blocked_and_says_why(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.pause()
    assert look(ends) == (ActivityState.BLOCKED, "it is not read: endpoint.backpressure")

    ends.link.slowed_by.add("limits.bytes_per_second")

    assert look(ends) == (ActivityState.BLOCKED, "it is not read: limits.bytes_per_second")


async def test_link_that_is_not_read_does_not_blame_its_peer(ends: LinkEnds) -> None:
    """The answer may be there and not listened to."""
    ends.go_online()
    ends.link.tick(ends.loop.time() + HEARTBEAT)
    ends.link.pause()

    assert look(ends, 2 * HEARTBEAT)[0] is ActivityState.BLOCKED


async def test_link_that_is_ended_is_leaving_and_then_down(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.drain()
    assert look(ends)[0] is ActivityState.LEAVING

    ends.link.close("for the test")

    assert look(ends) == (ActivityState.DOWN, "for the test")


async def test_state_has_an_age(ends: LinkEnds) -> None:
    ends.go_online()
    now = ends.loop.time()
    look(ends, ACTIVE_SECONDS)
    look(ends, ACTIVE_SECONDS + 1)

    assert ends.link.activity.since == now + ACTIVE_SECONDS


async def test_goaway_is_progress(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(encode_link(GoAway(deadline_ms=1000)))
    look(ends)

    assert ends.link.activity.progress_at == ends.link.connection.last_heard


# --- test_intake ---
# What a link brings is passed on whole, in order and in time, so much in one turn.


SPENT = message(to_service="//here", hop_count=200)
MORE = 3 * CARE_MAX + 5  # frames that take four turns


@pytest.fixture
async def ends_of_intake(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


async def turns(ends_of_intake: LinkEnds, *, left: int = 0) -> int:
    """Let everything that is kept be passed on, but so many bytes; the turns that took."""
    count = 0
    while ends_of_intake.link.kept_bytes > left:
        assert ends_of_intake.sock not in ends_of_intake.loop.readers
        count += 1
        await asyncio.sleep(0)
    return count


# --- so much in one turn ---


@pytest.mark.parametrize(
    "frame",
    [PING, encode_link(Rejected()), encode_link(GoAway()), SPENT, message(to_service="//here", time_to_live=0)],
    ids=["ping", "rejected", "goaway", "hops", "lifetime"],
)
async def test_what_needs_care_is_taken_care_of_some_in_a_turn(frame: bytes, ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()

    ends_of_intake.sock.feed(frame * MORE)

    assert (MORE - CARE_MAX) * len(frame) == ends_of_intake.link.kept_bytes
    assert 3 == await turns(ends_of_intake)
    assert ends_of_intake.sock in ends_of_intake.loop.readers


async def test_order_is_kept_over_the_turns_and_nothing_is_lost(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()
    advice = [encode_link(Rejected(sequence=number)) for number in range(MORE)]
    frames = [message(sequence_number=number) for number in range(MORE)]

    ends_of_intake.sock.feed(
        b"".join(part for pair in zip(advice, frames, strict=True) for part in pair) + frames[0][:50]
    )
    await turns(ends_of_intake, left=50)
    ends_of_intake.sock.feed(frames[0][50:])

    assert [RejectedBy(Rejected(sequence=number)) for number in range(MORE)] == ends_of_intake.told
    assert [frame[48:56] for frame in [*frames, frames[0]]] == [frame[48:56] for frame in ends_of_intake.delivered]
    assert ends_of_intake.forwarder.unfinished.kept_bytes == 0


async def test_new_link_has_its_turns_as_well(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.start()

    ends_of_intake.sock.feed(HELLO + PING * MORE)

    assert 3 == await turns(ends_of_intake)


async def test_link_with_more_than_a_turns_work_is_read_in_small_pieces_until_it_has_less(
    ends_of_intake: LinkEnds,
) -> None:
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(PING * MORE)
    await turns(ends_of_intake)
    start = ends_of_intake.link.bytes_received
    plain = message(bytes(1000))

    sizes = []
    ends_of_intake.sock.feed(plain * (READ_BYTES // len(plain)) * 3)
    for _ in range(4):
        sizes.append(ends_of_intake.link.bytes_received - start)
        start = ends_of_intake.link.bytes_received
        ends_of_intake.sock.read()

    assert [2 * SMALL_READ_BYTES, 4 * SMALL_READ_BYTES, READ_BYTES, READ_BYTES] == sizes


async def test_paused_link_has_no_turn(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(PING * MORE)
    kept = ends_of_intake.link.kept_bytes

    ends_of_intake.link.pause()
    for _ in range(10):
        await asyncio.sleep(0)
    ends_of_intake.link.rearm_reader()
    assert (kept, {}) == (ends_of_intake.link.kept_bytes, ends_of_intake.loop.readers)
    ends_of_intake.link.tick(ends_of_intake.loop.time() + 1000)
    ends_of_intake.link.resume()

    assert 3 == await turns(ends_of_intake)
    assert LinkState.LOGGED_IN is ends_of_intake.link.state


async def test_link_that_is_closed_between_turns_has_none_any_more(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(SPENT * MORE)
    dropped = ends_of_intake.forwarder.dropped.total()

    ends_of_intake.link.close("over")
    await asyncio.sleep(1)

    assert (dropped, 0, 0) == (
        ends_of_intake.forwarder.dropped.total(),
        ends_of_intake.link.kept_bytes,
        ends_of_intake.forwarder.unfinished.kept_bytes,
    )


async def test_link_that_fails_in_a_later_turn_is_heard_out(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(PING * MORE + b"\xff" * 100)

    await asyncio.sleep(0.1)

    assert (LinkState.LINGERING, 0) == (ends_of_intake.link.state, ends_of_intake.forwarder.unfinished.kept_bytes)
    assert ends_of_intake.sock in ends_of_intake.loop.readers
    ends_of_intake.sock.end()
    assert LinkState.CLOSED is ends_of_intake.link.state


async def test_bug_in_a_later_turn_is_told_to_the_owner(
    ends_of_intake: LinkEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Exception] = []
    monkeypatch.setattr(ends_of_intake, "on_bug", lambda _, error: failed.append(error))
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(PING * MORE)

    def fail(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(ends_of_intake.forwarder, "forward", fail)
    await asyncio.sleep(0.1)

    assert ["a bug"] == [str(error) for error in failed]


async def test_last_word_of_the_peer_is_the_last(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()

    ends_of_intake.sock.feed(message() + encode_link(Fatal(text="bye")) + message() + PING)

    assert (1, [Ended(Fatal(text="bye"))]) == (len(ends_of_intake.delivered), ends_of_intake.told)


# --- in time ---


async def test_frame_has_to_be_complete_in_time_that_goes_by_its_length(
    ends_of_intake: LinkEnds, loop: PlayedLoop
) -> None:
    ends_of_intake.go_online()
    frame = message(bytes(8000))
    seconds = FRAME_SECONDS + len(frame) / FRAME_BYTES_PER_SECOND
    begin = loop.time()
    ends_of_intake.sock.feed(frame[:3])
    for at in range(3, int(seconds)):
        await asyncio.sleep(1)
        ends_of_intake.sock.feed(frame[at : at + 1])

    ends_of_intake.link.tick(begin + seconds - 0.01)
    assert LinkState.LOGGED_IN is ends_of_intake.link.state
    ends_of_intake.link.tick(begin + seconds)

    assert "frame of 8126 bytes, not complete within 10 s" in str(ends_of_intake.link.error)


async def test_each_frame_has_its_own_time(ends_of_intake: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_intake.go_online()
    frame = message(bytes(8000))

    ends_of_intake.sock.feed(frame[:100])
    for _ in range(10):
        await asyncio.sleep(FRAME_SECONDS - 1)
        ends_of_intake.sock.feed(frame[100:] + frame[:100])
        ends_of_intake.link.tick(loop.time())

    assert (None, 10) == (ends_of_intake.link.error, len(ends_of_intake.delivered))


async def test_time_in_which_it_is_not_listened_to_does_not_count(ends_of_intake: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(message()[:100])
    ends_of_intake.link.pause()
    await asyncio.sleep(100)
    ends_of_intake.link.tick(loop.time())

    ends_of_intake.link.resume()
    ends_of_intake.link.tick(loop.time() + 5)

    assert None is ends_of_intake.link.error


async def test_what_is_kept_of_a_frame_that_is_refused_counts_no_more(ends_of_intake: LinkEnds) -> None:
    ends_of_intake.go_online()
    ends_of_intake.sock.feed(message()[:3])
    assert 3 == ends_of_intake.forwarder.unfinished.kept_bytes

    ends_of_intake.sock.feed(b"\x01" * 100)

    assert (LinkState.LINGERING, 0) == (ends_of_intake.link.state, ends_of_intake.forwarder.unfinished.kept_bytes)


@pytest.fixture
async def ends_of_link(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


# --- HELLO ---


async def test_both_sides_say_hello_at_once_and_are_online_when_it_came(ends_of_link: LinkEnds) -> None:
    ends_of_link.start()
    assert (LinkState.CONNECTED, [OWN], "") == (
        ends_of_link.link.state,
        ends_of_link.said(),
        ends_of_link.link.peer_name,
    )

    ends_of_link.sock.feed(HELLO)

    assert (LinkState.LOGGED_IN, ["online"]) == (ends_of_link.link.state, ends_of_link.told)
    assert ends_of_link.link.agreement is not None
    assert PEER == ends_of_link.link.agreement.peer
    assert (PEER.max_frame, "peer") == (ends_of_link.link.max_frame, ends_of_link.link.peer_name)
    assert (ends_of_link.link.can_send, ends_of_link.link.is_narrow) == (True, False)


async def test_peer_that_takes_less_than_we_do_is_narrow(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online(max_frame=4096, name="x" * 1000)

    assert (4096, True, PEER_NAME_MAX) == (
        ends_of_link.link.max_frame,
        ends_of_link.link.is_narrow,
        len(ends_of_link.link.peer_name),
    )


@pytest.mark.parametrize("piece", [1, 3, 100, 1 << 20])
async def test_hello_and_all_behind_it_may_come_in_any_pieces(piece: int, ends_of_link: LinkEnds) -> None:
    frames = [message(b"x" * 300, sequence_number=n) for n in range(3)]
    ends_of_link.start()

    ends_of_link.sock.feed(HELLO + frames[0] + PING + frames[1] + frames[2], piece=piece)

    assert [frame[:6] for frame in frames] == [frame[:6] for frame in ends_of_link.delivered]
    assert [OWN, Pong(b"12345678")] == ends_of_link.said()
    assert ends_of_link.link.received == {0x10: 3}


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
async def test_stranger_is_told_what_is_wrong_and_closed(first: bytes, number: int, ends_of_link: LinkEnds) -> None:
    ends_of_link.start()

    ends_of_link.sock.feed(first)

    last = ends_of_link.said()[-1]
    assert isinstance(last, Fatal)
    assert (number, ["lost"], True) == (last.code, ends_of_link.told, ends_of_link.sock.shut)
    await asyncio.sleep(LINGER_SECONDS)
    assert (LinkState.CLOSED, ["lost", "closed"], True) == (
        ends_of_link.link.state,
        ends_of_link.told,
        ends_of_link.sock.is_closed,
    )


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
    ends_of_link: LinkEnds,
) -> None:
    if is_online:
        ends_of_link.go_online()
    else:
        ends_of_link.start()

    ends_of_link.sock.feed(first, piece=1)

    last = ends_of_link.said()[-1]
    assert isinstance(last, Fatal)
    assert number == last.code


async def test_kind_before_hello_is_not_judged_before_it_is_there(ends_of_link: LinkEnds) -> None:
    ends_of_link.start()
    ends_of_link.forwarder.slab[4] = 0x10  # what another link left there

    ends_of_link.sock.feed(HELLO[:4])
    ends_of_link.sock.feed(HELLO[4:])

    assert LinkState.LOGGED_IN == ends_of_link.link.state


async def test_silence_before_hello_is_closed_in_time(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.start()

    ends_of_link.link.tick(HANDSHAKE - 0.1)
    assert ends_of_link.told == []
    ends_of_link.link.tick(HANDSHAKE)

    assert (HandshakeRefusedError, ["lost"]) == (type(ends_of_link.link.error), ends_of_link.told)


async def test_peer_that_answers_hello_with_fatal_is_told_to_the_owner(ends_of_link: LinkEnds) -> None:
    ends_of_link.start()

    ends_of_link.sock.feed(encode_link(Fatal(code=1, text="no")))

    (event,) = ends_of_link.told
    assert "Ended" == type(event).__name__


async def test_owner_that_closes_on_hello_hears_of_nothing_behind_it(ends_of_link: LinkEnds, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends_of_link, "on_online", lambda link: link.close("to itself"))
    ends_of_link.start()

    ends_of_link.sock.feed(HELLO + message() + PING)

    assert ([], ["lost", "closed"], "to itself") == (
        ends_of_link.delivered,
        ends_of_link.told,
        ends_of_link.link.reason,
    )


# --- writing ---


async def test_cut_frame_is_finished_before_anything_else(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    frames = message(sequence_number=1), message(sequence_number=2)
    ends_of_link.sock.room = 30

    sent = ends_of_link.link.send(frames[0])
    ends_of_link.link.finish(memoryview(frames[0])[sent:])
    ends_of_link.sock.feed(PING)
    assert (30, False, True) == (sent, ends_of_link.link.can_send, ends_of_link.link.is_blocked)
    for _ in range(20):
        ends_of_link.sock.breathe(20)

    assert frames[0] + encode_link(Pong(b"12345678")) == ends_of_link.sock.written
    assert (["writable"], True, False) == (ends_of_link.told, ends_of_link.link.can_send, ends_of_link.link.is_blocked)
    assert ends_of_link.loop.writers == {}


async def test_full_socket_takes_nothing_and_says_when_it_does(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.room = 0

    sent = ends_of_link.link.send(message())
    ends_of_link.sock.breathe()

    assert (0, ["writable"], b"") == (sent, ends_of_link.told, ends_of_link.sock.written)


async def test_hello_to_a_full_socket_waits_for_room(ends_of_link: LinkEnds) -> None:
    ends_of_link.start(room=5)

    ends_of_link.sock.breathe()

    assert [OWN] == ends_of_link.said()


async def test_counters_tell_what_was_moved(ends_of_link: LinkEnds) -> None:
    ends_of_link.start()
    ends_of_link.sock.feed(HELLO)
    ends_of_link.link.send(message())

    sent, received = len(encode_link(OWN)) + len(message()), len(HELLO)
    link = ends_of_link.link
    assert (2, sent, 1, received) == (link.sends, link.bytes_sent, link.receives, link.bytes_received)


async def test_connection_lost_while_writing_closes_after_the_pass(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.problem = errno.EPIPE

    sent = ends_of_link.link.send(message())
    assert (0, [], False) == (sent, ends_of_link.told, ends_of_link.link.can_send)
    await asyncio.sleep(0)

    assert (["lost", "closed"], "Broken pipe") == (ends_of_link.told, ends_of_link.link.reason)


async def test_connection_lost_while_reading_closes(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()

    ends_of_link.sock.fail()

    assert (["lost", "closed"], "Connection reset by peer") == (ends_of_link.told, ends_of_link.link.reason)


async def test_readiness_without_data_changes_nothing(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()

    ends_of_link.sock.read()

    assert (LinkState.LOGGED_IN, []) == (ends_of_link.link.state, ends_of_link.told)


# --- advice ---


async def test_dropped_frame_is_advised(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()

    ends_of_link.sock.feed(message(to_service="//nobody", sequence_number=9))

    assert [Rejected(b"m" * 16, b"c" * 16, 9, 0, 9798, "no route")] == ends_of_link.said()
    assert ends_of_link.link.frames_rejected == 1


@pytest.mark.parametrize("frame", [message(to_service="//nobody"), PING], ids=["advice", "replies"])
async def test_what_waits_for_a_peer_that_does_not_read_has_a_bound(frame: bytes, ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.room = 0

    for _ in range(100):
        ends_of_link.sock.feed(frame * 100)
        ends_of_link.link.tick(ends_of_link.loop.time())
    ends_of_link.sock.breathe()

    assert 0 < len(ends_of_link.sock.written) <= CONTROL_MAX_BYTES + 1000
    assert {type(said) for said in ends_of_link.said()} <= {Pong, Rejected, Ping}


async def test_flood_of_pings_is_answered_with_one_write(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    before = ends_of_link.link.sends

    ends_of_link.sock.feed(PING * CARE_MAX)

    assert ([Pong(b"12345678")] * CARE_MAX, before + 1) == (ends_of_link.said(), ends_of_link.link.sends)


async def test_no_ping_is_added_to_what_a_stalled_peer_does_not_take(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.room = 0
    ends_of_link.sock.feed(PING * (CONTROL_MAX_BYTES // len(PING) + 10))
    await asyncio.sleep(1)
    waiting = len(ends_of_link.link._control)

    ends_of_link.link.tick(loop.time() + 3)

    assert waiting == len(ends_of_link.link._control)


async def test_whatever_is_said_has_the_same_bound_but_for_the_last_words(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.room = 0

    for _ in range(CONTROL_MAX_BYTES):
        ends_of_link.link.send_control(PING)
    ends_of_link.link.fail(FrameMalformedError("enough"))
    ends_of_link.sock.breathe()

    assert len(ends_of_link.sock.written) <= CONTROL_MAX_BYTES + 1000
    assert isinstance(ends_of_link.said()[-1], Fatal)


async def test_link_that_failed_while_writing_asks_nobody_for_room(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.room = 0
    ends_of_link.link.send(message())
    ends_of_link.link.finish(message())
    ends_of_link.sock.problem = errno.EPIPE

    ends_of_link.sock.breathe()
    ends_of_link.link.send_control(PING)
    ends_of_link.link.tick(ends_of_link.loop.time() + 3)
    await asyncio.sleep(0)

    assert (["lost", "closed"], {}) == (ends_of_link.told, ends_of_link.loop.writers)


async def test_loop_is_asked_again_to_tell_of_a_socket_that_was_read(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()
    assert 1 == ends_of_link.heard

    ends_of_link.sock.feed(PING)
    assert 1 == ends_of_link.heard
    del ends_of_link.loop.readers[ends_of_link.sock]
    ends_of_link.link.rearm_reader()
    ends_of_link.sock.feed(PING)

    assert (2, [Pong(b"12345678")] * 2) == (ends_of_link.heard, ends_of_link.said())


async def test_paused_or_closed_link_is_not_read_because_it_was_renewed(
    ends_of_link: LinkEnds, loop: PlayedLoop
) -> None:
    ends_of_link.go_online()

    ends_of_link.link.pause()
    ends_of_link.link.rearm_reader()
    assert {} == loop.readers
    ends_of_link.link.resume()
    ends_of_link.link.close("over")
    ends_of_link.link.rearm_reader()

    assert {} == loop.readers


async def test_paused_link_is_not_read_until_everybody_lets_it_go_on(ends_of_link: LinkEnds) -> None:
    ends_of_link.go_online()

    ends_of_link.link.pause()
    ends_of_link.link.pause()
    ends_of_link.sock.feed(message(to_service="//here"))
    ends_of_link.link.resume()
    ends_of_link.sock.read()
    assert ([], True) == (ends_of_link.delivered, ends_of_link.link.is_paused)
    ends_of_link.link.resume()
    ends_of_link.sock.read()

    assert (1, False) == (len(ends_of_link.delivered), ends_of_link.link.is_paused)


async def test_link_closed_while_it_pauses_stays_closed(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.go_online()

    ends_of_link.link.pause()
    ends_of_link.link.close("over")
    ends_of_link.link.resume()

    assert ({}, True) == (loop.readers, ends_of_link.sock.is_closed)


async def test_closed_link_can_be_told_to_pause(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.go_online()

    ends_of_link.link.close("over")
    ends_of_link.link.pause()
    ends_of_link.link.resume()

    assert ({}, True) == (loop.readers, ends_of_link.sock.is_closed)


async def test_link_whose_peer_has_ended_is_not_read_again_after_a_pause(
    ends_of_link: LinkEnds, loop: PlayedLoop
) -> None:
    ends_of_link.go_online()
    ends_of_link.sock.room = 0
    ends_of_link.link.send_control(PING)
    ends_of_link.sock.end()

    ends_of_link.link.pause()
    ends_of_link.link.resume()

    assert ({}, LinkState.LINGERING) == (loop.readers, ends_of_link.link.state)


async def test_peer_that_is_not_listened_to_is_not_silent(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.go_online()
    ends_of_link.link.pause()

    ends_of_link.link.tick(loop.time() + 60.0)

    assert (None, LinkState.LOGGED_IN) == (ends_of_link.link.error, ends_of_link.link.state)


# --- time ---


async def test_heartbeat_is_said_after_silence_and_silence_of_the_peer_ends_the_link(
    ends_of_link: LinkEnds, loop: PlayedLoop
) -> None:
    ends_of_link.go_online()
    silent_for = ends_of_link.link.connection.heartbeat

    ends_of_link.link.tick(loop.time())
    assert ends_of_link.said() == []
    ends_of_link.link.tick(loop.time() + silent_for)
    assert ["Ping"] == [type(said).__name__ for said in ends_of_link.said()]
    ends_of_link.link.tick(loop.time() + 6.0)

    assert (PeerSilentError, LinkState.LINGERING) == (type(ends_of_link.link.error), ends_of_link.link.state)


async def test_peer_that_is_heard_is_not_silent(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.go_online()

    for _ in range(3):
        await asyncio.sleep(5.9)
        ends_of_link.sock.feed(PING)
        ends_of_link.link.tick(loop.time())

    assert (LinkState.LOGGED_IN, None) == (ends_of_link.link.state, ends_of_link.link.error)


async def test_ended_link_has_no_heartbeat(ends_of_link: LinkEnds, loop: PlayedLoop) -> None:
    ends_of_link.go_online()
    ends_of_link.link.drain()
    ends_of_link.link.tick(loop.time() + 100)
    ends_of_link.link.close("over")
    ends_of_link.link.tick(loop.time() + 200)

    assert (b"", None) == (ends_of_link.sock.written, ends_of_link.link.error)
