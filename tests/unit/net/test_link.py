"""One link from HELLO to its end, as a transcript of what the socket brings and accepts."""

import asyncio
import errno
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.forwarding.entry import CARE_MAX
from broker.forwarding.latency import BOUNDS, REST_SECONDS, SHARED_FRAMES, HopTimes
from broker.forwarding.pool import READ_BYTES
from broker.net.link import (
    ACTIVE_SECONDS,
    ANSWER_SHARE,
    BLOCKED_SECONDS,
    CONTROL_MAX_BYTES,
    LINGER_BYTES,
    LINGER_SECONDS,
    REFUSED_MAX,
    REJECTS_PER_SECOND,
    SMALL_READ_BYTES,
    ActivityState,
    LinkState,
    render_rejected,
)
from broker.net.quotas import Permissions, Permit
from broker.protocol.frame import Fatal, GoAway, Hello, Pong, Rejected, decode_link, encode_link
from broker.protocol.layout import FRAME_BYTES_PER_SECOND, FRAME_SECONDS
from broker.routing.decide import hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants
from broker.security.principal import who_is
from tests.support.link import FAR, HANDSHAKE, HELLO, HERE, OWN, PEER, PING, ROUTES, LinkEnds, message
from tests.support.played import PlayedLoop

# --- advice ---


def test_who_lacks_a_permission_is_told_which() -> None:
    permissions = Permissions()
    permissions.grants = Grants(is_default_deny=True)
    permit = Permit(who_is("CN=a"), permissions.grants.profile(who_is("CN=a")), permissions)

    rejected = decode_link(render_rejected(message(to_service="t"), Disposition.NOT_PERMITTED, permit))

    missing = "no GRANT SEND ON SERVICE::[t] TO [CN=a] or public"
    assert isinstance(rejected, Rejected)
    assert (11215, f"not permitted: {missing}") == (rejected.code, rejected.reason)
    assert [f"CN=a may not send: {missing}"] == [why for _, why in permissions.refusals.values()]


async def test_a_peer_is_asked_to_send_again_what_would_be_accepted_now(loop: PlayedLoop) -> None:
    ends = LinkEnds(loop)
    permissions = Permissions()
    permissions.grants = Grants(is_default_deny=True)
    who = who_is("CN=a")

    def tick() -> list[tuple[int, int, int]]:
        """What is said of refused frames: conversation, number and pause."""
        ends.sock.written = b""
        ends.link.tick(loop.time())
        return [(one.conversation[0], one.code, one.retry_after_ms) for one in ends.said() if isinstance(one, Rejected)]

    ends.go_online()
    ends.link.permit = Permit(who, permissions.grants.profile(who), permissions)
    ends.sock.feed(message(conversation_id=b"1" * 16) + message(conversation_id=b"2" * 16, to_service="//new"))
    assert [11215, 11215] == [one.code for one in ends.said() if isinstance(one, Rejected)]
    assert [] == tick()

    ends.link.permit = Permit(who, Grants().profile(who), permissions)
    assert ([(ord("1"), 0, 100)], []) == (tick(), tick())
    table = build_table((*ROUTES, Route("New", FAR, remote_service_name="//new")), now=datetime.now(UTC))
    ends.forwarder.set_routing(table=table, hosted=hosted({HERE: ["//here"]}), is_forwarding=True)
    assert ([(ord("2"), 0, 100)], []) == (tick(), tick())


async def test_refusals_that_no_change_here_ends_are_not_remembered_and_the_others_are_bounded(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(SPENT)
    for number in range(2 * REFUSED_MAX):
        ends.sock.feed(message(conversation_id=number.to_bytes(16), to_service="//new"))
        await asyncio.sleep(0)
    ends.sock.written = b""

    table = build_table((Route("New", FAR, remote_service_name="//new"),), now=datetime.now(UTC))
    ends.forwarder.set_routing(table=table, hosted=hosted({HERE: ["//here"]}), is_forwarding=True)
    ends.link.tick(ends.loop.time())

    invited = [int.from_bytes(one.conversation) for one in ends.said() if isinstance(one, Rejected)]
    assert list(range(REFUSED_MAX, 2 * REFUSED_MAX)) == invited


# --- activity ---


HEARTBEAT = OWN.heartbeat_ms / 1000


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


def look(ends: LinkEnds, after: float = 0.0) -> tuple[ActivityState, str]:
    flow = ends.link.activity.update(ends.link, ends.loop.time() + after)
    return flow.state, flow.reason


async def test_activity_follows_the_life_of_a_link(ends: LinkEnds) -> None:
    ends.start()
    assert look(ends) == (ActivityState.OPENING, "HELLO of the peer has not come")
    ends.sock.feed(HELLO)
    idle_from = ends.loop.time() + ACTIVE_SECONDS
    assert [look(ends, ACTIVE_SECONDS), look(ends, ACTIVE_SECONDS + 1)] == [(ActivityState.IDLE, "")] * 2
    assert ends.link.activity.since == idle_from

    ends.link.drain()
    assert look(ends)[0] is ActivityState.LEAVING
    ends.link.close("for the test")

    assert look(ends) == (ActivityState.DOWN, "for the test")


async def test_dialog_frames_are_flow_for_a_while_and_control_frames_are_not(ends: LinkEnds) -> None:
    flowing, idle = (ActivityState.FLOWING, ""), (ActivityState.IDLE, "")
    ends.go_online()
    ends.sock.feed(message())
    assert [look(ends), look(ends, ACTIVE_SECONDS)] == [flowing, idle]

    ends.link.send(message())
    assert [look(ends, 10.0), look(ends, 10.0 + ACTIVE_SECONDS)] == [flowing, idle]
    ends.link.send_control(encode_link(Pong(bytes(8))))

    assert look(ends, 10.0 + ACTIVE_SECONDS) == idle


@pytest.mark.promise("A connection is stalled, blocked or down")
async def test_peer_that_does_not_answer_is_stalled_though_it_is_written_to(ends: LinkEnds) -> None:
    ends.go_online()
    now, late = ends.loop.time(), HEARTBEAT * (1 + ANSWER_SHARE)
    ends.link.tick(now + HEARTBEAT)
    ends.link.send(message())
    assert look(ends, HEARTBEAT + 0.01) == (ActivityState.FLOWING, "")
    assert look(ends, late) == (ActivityState.STALLED, "the peer does not answer")

    ends.link.connection.last_heard = now + HEARTBEAT * 1.4  # its answer may be behind a lot that it sends
    assert look(ends, late)[0] is not ActivityState.STALLED
    ends.link.connection.last_heard = now
    ends.sock.feed(encode_link(Pong(b"\0\0\0\0\0\0\0\1")))

    assert look(ends, HEARTBEAT * 2 + ACTIVE_SECONDS) == (ActivityState.IDLE, "")
    assert ends.link.activity.progress_at == ends.link.connection.last_heard == now


async def test_link_that_is_not_read_or_takes_nothing_is_blocked_and_says_why(ends: LinkEnds) -> None:
    """One that is not read does not blame its peer: the answer may be there."""
    ends.go_online()
    ends.link.tick(ends.loop.time() + HEARTBEAT)
    ends.link.pause("limits.b")
    ends.link.pause("limits.a")
    assert look(ends, 2 * HEARTBEAT) == (ActivityState.BLOCKED, "it is not read: limits.a, limits.b")

    ends.link.resume("limits.a")
    ends.link.resume("limits.b")
    ends.sock.room = 10
    ends.link.send(message())
    assert look(ends)[0] is ActivityState.FLOWING

    assert look(ends, BLOCKED_SECONDS) == (ActivityState.BLOCKED, "the peer takes nothing more")


# --- receiving ---


SPENT = message(to_service="//here", hop_count=200)
MORE = 3 * CARE_MAX + 5  # frames that take four turns


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
    advice = [Rejected(sequence=number) for number in range(MORE)]
    frames = [message(sequence_number=number) for number in range(MORE)]

    pairs = zip(map(encode_link, advice), frames, strict=True)
    ends.sock.feed(b"".join(part for pair in pairs for part in pair) + frames[0][:50])
    await turns(ends, left=50)
    ends.sock.feed(frames[0][50:])

    assert advice == ends.told
    assert [frame[48:56] for frame in [*frames, frames[0]]] == [frame[48:56] for frame in ends.delivered]
    assert ends.forwarder.unfinished.kept_bytes == 0


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

    ends.link.pause("limits")
    for _ in range(10):
        await asyncio.sleep(0)
    ends.link.rearm_reader()
    assert (kept, {}) == (ends.link.kept_bytes, ends.loop.readers)
    ends.link.tick(ends.loop.time() + 1000)
    ends.link.resume("limits")

    assert 3 == await turns(ends)
    assert LinkState.LOGGED_IN is ends.link.state


async def test_link_that_is_closed_between_turns_has_none_any_more(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(SPENT * MORE)
    dropped, forwarder = ends.forwarder.dropped.total(), ends.forwarder

    ends.link.close("over")
    await asyncio.sleep(1)

    assert (dropped, 0, 0) == (forwarder.dropped.total(), ends.link.kept_bytes, forwarder.unfinished.kept_bytes)


@pytest.mark.parametrize("pings", [1, MORE], ids=["at once", "in a later turn"])
async def test_frames_before_bytes_that_are_none_are_taken_and_the_link_is_heard_out(
    pings: int, ends: LinkEnds
) -> None:
    ends.go_online()
    ends.sock.feed(message() + PING * pings + b"\xff" * 100 + message())

    await asyncio.sleep(0.1)

    assert (LinkState.LINGERING, 0) == (ends.link.state, ends.forwarder.unfinished.kept_bytes)
    assert (1, pings, Fatal) == (len(ends.delivered), len(ends.said()) - 1, type(ends.said()[-1]))
    assert (False, True) == (ends.link.can_send, ends.sock in ends.loop.readers)
    ends.sock.end()
    assert LinkState.CLOSED is ends.link.state


# --- in time ---


async def test_frame_has_to_be_complete_in_time_that_goes_by_its_length(ends: LinkEnds, loop: PlayedLoop) -> None:
    """Each frame has its own time."""
    ends.go_online()
    frame = message(bytes(8000))
    for _ in range(10):
        ends.sock.feed(frame[:100])
        await asyncio.sleep(FRAME_SECONDS - 1)
        ends.sock.feed(frame[100:])
        ends.link.tick(loop.time())
    assert (None, 10) == (ends.link.error, len(ends.delivered))

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


# --- HELLO ---


async def test_both_sides_say_hello_at_once_and_are_online_when_it_came(ends: LinkEnds) -> None:
    ends.start()
    assert (LinkState.CONNECTED, [OWN], "") == (ends.link.state, ends.said(), ends.link.peer_name)

    ends.sock.feed(HELLO)

    assert (LinkState.LOGGED_IN, ["online"]) == (ends.link.state, ends.told)
    assert (PEER.max_frame, "peer", True) == (ends.link.max_frame, ends.link.peer_name, ends.link.can_send)


@pytest.mark.parametrize("piece", [1, 3, 100, 1 << 20])
async def test_hello_and_all_behind_it_may_come_in_any_pieces(piece: int, ends: LinkEnds) -> None:
    frames = [message(b"x" * 300, sequence_number=n) for n in range(3)]
    ends.start()
    ends.forwarder.slab[4] = 0x10  # what another link left there: no kind before it has come

    ends.sock.feed(HELLO + frames[0] + PING + frames[1] + frames[2], piece=piece)

    assert [frame[:6] for frame in frames] == [frame[:6] for frame in ends.delivered]
    assert ([OWN, Pong(b"12345678")], {0x10: 3}) == (ends.said(), ends.link.received)


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
        (b"\xff\xff\xff\xff", 28042),
        (b"\x00\x00\x00\x07", 28041),
        (b"\x00\x00\x00\x10\x09", 28041),
    ],
    ids=["http", "tls", "kind", "dialog", "ping", "protocol", "no map", "long", "short", "first bytes of a kind"],
)
async def test_stranger_is_told_what_is_wrong_and_closed(first: bytes, number: int, ends: LinkEnds) -> None:
    ends.start()

    ends.sock.feed(first)

    last = ends.said()[-1]
    assert isinstance(last, Fatal)
    assert (number, ["lost"], True) == (last.code, ends.told, ends.sock.shut)
    await asyncio.sleep(LINGER_SECONDS)
    assert (LinkState.CLOSED, ["lost", "closed"], True) == (ends.link.state, ends.told, ends.sock.is_closed)


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
    ends.link.keep_rest(memoryview(frames[0])[sent:])
    ends.sock.feed(PING)
    assert (30, False, True) == (sent, ends.link.can_send, ends.link.is_blocked)
    for _ in range(20):
        ends.sock.breathe(20)

    assert frames[0] + encode_link(Pong(b"12345678")) == ends.sock.written
    assert (["writable"], True, False) == (ends.told, ends.link.can_send, ends.link.is_blocked)
    assert ends.loop.writers == {}


async def test_connection_lost_while_writing_closes_after_the_pass(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.problem = errno.EPIPE

    sent = ends.link.send(message())
    assert (0, [], False) == (sent, ends.told, ends.link.can_send)
    await asyncio.sleep(0)

    assert (["lost", "closed"], "Broken pipe") == (ends.told, ends.link.reason)


# --- advice ---


async def test_dropped_frames_are_advised_at_a_rate(ends: LinkEnds) -> None:
    ends.go_online()

    for number in range(REJECTS_PER_SECOND + 50):
        ends.sock.feed(message(to_service="//nobody", sequence_number=number))

    assert Rejected(b"m" * 16, b"c" * 16, 9, 0, 9798, "no route") == ends.said()[9]
    assert (REJECTS_PER_SECOND, REJECTS_PER_SECOND + 50) == (len(ends.said()), ends.link.frames_rejected)


async def test_flood_of_pings_is_answered_with_one_write(ends: LinkEnds) -> None:
    ends.go_online()
    before = ends.link.sends

    ends.sock.feed(PING * CARE_MAX)

    assert ([Pong(b"12345678")] * CARE_MAX, before + 1) == (ends.said(), ends.link.sends)
    assert 1 == ends.heard  # the loop still watches the socket, as far as is known
    del ends.loop.readers[ends.sock]
    ends.link.rearm_reader()
    ends.sock.feed(PING)
    assert (2, CARE_MAX + 1) == (ends.heard, len(ends.said()))


async def test_whatever_is_said_has_the_same_bound_but_for_the_last_words(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.room = 0

    for _ in range(CONTROL_MAX_BYTES):
        ends.link.send_control(PING)
    ends.link.fail(FrameMalformedError("enough"))
    ends.sock.breathe()

    assert len(ends.sock.written) <= CONTROL_MAX_BYTES + 1000
    assert isinstance(ends.said()[-1], Fatal)


async def test_paused_link_is_not_read_until_everybody_lets_it_go_on(ends: LinkEnds) -> None:
    ends.go_online()

    ends.link.pause("limits")
    ends.link.pause("limits")
    ends.sock.feed(message())
    ends.link.resume("limits")
    ends.sock.read()
    assert ([], True) == (ends.delivered, ends.link.is_paused)
    ends.link.resume("limits")
    ends.sock.read()

    assert (1, False) == (len(ends.delivered), ends.link.is_paused)


async def test_link_closed_while_it_pauses_stays_closed_and_is_told_once(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()

    ends.link.pause("limits")
    ends.link.rearm_reader()
    assert {} == loop.readers
    ends.link.close("first")
    ends.link.resume("limits")
    ends.link.rearm_reader()
    ends.link.close("second")
    ends.link.fail(FrameMalformedError("third"))

    assert ({}, "first", ["lost", "closed"]) == (loop.readers, ends.link.reason, ends.told)


async def test_link_whose_peer_has_ended_is_not_read_again_and_writes_what_it_has_begun(ends: LinkEnds) -> None:
    ends.go_online()
    frame = message()
    ends.sock.room = 10
    ends.link.send(frame)
    ends.link.keep_rest(frame[10:])

    ends.sock.end()
    ends.link.pause("limits")
    ends.link.resume("limits")
    assert ({}, LinkState.LINGERING, ["lost"]) == (ends.loop.readers, ends.link.state, ends.told)
    ends.sock.breathe()
    await asyncio.sleep(0)

    assert (frame, ["lost", "closed"]) == (ends.sock.written, ends.told)


# --- how long frames are here ---


def hop_times(ends: LinkEnds) -> dict[float, int]:
    """Frames by the bound they are below."""
    hop = ends.forwarder.hop
    hop.count_pending()
    return {bound: count for bound, count in zip([*BOUNDS, float("inf")], hop.counts, strict=True) if count}


@pytest.mark.parametrize(("pause", "frames"), [(0.0, 3 * SHARED_FRAMES + 1), (2 * REST_SECONDS, 3)])
async def test_lone_frames_share_one_time_unless_the_link_rested(
    pause: float, frames: int, ends: LinkEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.go_online()
    timed: list[float] = []
    handed_over = HopTimes.handed_over

    def watched(times: HopTimes, *args: Any) -> None:
        timed.append(args[0])
        handed_over(times, *args)

    monkeypatch.setattr(HopTimes, "handed_over", watched)

    for number in range(frames):
        await asyncio.sleep(pause)
        ends.sock.feed(message(sequence_number=number))

    assert (3, frames) == (len(timed), sum(hop_times(ends).values()))


async def test_frame_that_waits_is_counted_when_it_leaves_with_its_time(ends: LinkEnds, loop: PlayedLoop) -> None:
    ends.go_online()
    ends.sock.feed(message(to_service="//far") + message(sequence_number=1))
    assert hop_times(ends) == {BOUNDS[0]: 1}
    await asyncio.sleep(10)
    ends.sock.feed(message(to_service="//far", sequence_number=2))
    outbox = next(iter(ends.forwarder.table.outboxes.values()))
    outbox.outlet = ends.link

    outbox.drain(loop.time() + 0.7)

    assert hop_times(ends) == {BOUNDS[0]: 1, 1.0: 1, 30.0: 1}
    assert ends.forwarder.hop.seconds == pytest.approx(11.4)


# --- the end ---


async def test_last_words_wait_behind_a_cut_frame_for_a_moment(ends: LinkEnds) -> None:
    ends.go_online()
    frame = message()
    ends.sock.room = 10
    ends.link.send(frame)
    ends.link.keep_rest(frame[10:])

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


@pytest.mark.parametrize("is_sound", [True, False])
async def test_drained_link_hears_its_peer_until_that_closes(ends: LinkEnds, *, is_sound: bool) -> None:
    ends.go_online()

    ends.link.drain()
    ends.link.drain()
    ends.sock.feed(message() + PING + (b"" if is_sound else b"\xff" * 10))
    if is_sound:
        assert (LinkState.DRAINING, True) == (ends.link.state, ends.sock.shut)
    assert (1, b"") == (len(ends.delivered), ends.sock.written)
    ends.sock.end()

    assert (["lost", "closed"], is_sound) == (ends.told, ends.link.error is None)


@pytest.mark.parametrize(("problem", "seconds"), [(0, HANDSHAKE), (errno.ENOTCONN, 0)])
async def test_drained_link_is_closed_when_the_peer_never_does_or_it_cannot_be_shut(
    problem: int, seconds: float, ends: LinkEnds
) -> None:
    ends.go_online()
    ends.sock.problem = problem

    ends.link.drain()
    await asyncio.sleep(seconds)

    assert ["lost", "closed"] == ends.told


async def test_leaving_peer_is_heard_after_our_direction_is_closed_for_so_long(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(encode_link(GoAway(reason="upgrade", deadline_ms=500)))

    ends.link.drain(5)
    ends.sock.feed(message() + PING)

    assert [GoAway(reason="upgrade", deadline_ms=500)] == ends.told
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


@pytest.mark.parametrize("is_broken", [False, True])
async def test_link_ends_in_order_when_the_peer_leaves_and_nothing_breaks(ends: LinkEnds, *, is_broken: bool) -> None:
    ends.go_online()
    assert not ends.link.left_cleanly

    ends.link.is_peer_draining = True
    if is_broken:
        ends.sock.fail()
    else:
        ends.link.drain()
        ends.sock.end()

    assert (not is_broken, LinkState.CLOSED) == (ends.link.left_cleanly, ends.link.state)


async def test_end_that_comes_earlier_replaces_the_later_one(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.drain(60)

    ends.link.fail(FrameMalformedError("meanwhile"))
    await asyncio.sleep(LINGER_SECONDS)

    assert LinkState.CLOSED is ends.link.state


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "in a later turn"])
async def test_bug_while_reading_is_told_to_the_owner(
    ends: LinkEnds, monkeypatch: pytest.MonkeyPatch, *, is_later: bool
) -> None:
    failed: list[Exception] = []
    monkeypatch.setattr(ends, "on_bug", lambda _, error: failed.append(error))
    ends.go_online()

    def fail(*_: object) -> None:
        raise AssertionError("a bug")

    if is_later:
        ends.sock.feed(PING * MORE)
    monkeypatch.setattr(ends.forwarder, "forward", fail)
    ends.sock.feed(message())
    await asyncio.sleep(0.1)

    assert ["a bug"] == [str(error) for error in failed]
