"""The life of one connection as a transcript of frames and moments."""

from collections import Counter

import pytest
from msgspec.structs import replace

from broker.errors import FrameMalformedError, HandshakeRefusedError, OutOfSequenceError, PeerSilentError
from broker.protocol.frame import (
    KIND_OF,
    Fatal,
    GoAway,
    Hello,
    LinkMessage,
    Ping,
    Pong,
    Probe,
    ProbeReply,
    Rejected,
    decode_link,
    encode_link,
)
from broker.protocol.layout import NO_GUID, FrameKind
from broker.protocol.link_state import TRANSITIONS, LinkPhase, LinkStateMachine, agree, stays

OWN = Hello(arbitration=b"o" * 16, max_frame=65536, heartbeat_ms=2000)
PEER = Hello(arbitration=b"p" * 16, heartbeat_ms=3000)
START = 1000.0

ANY_OF_EACH: list[LinkMessage] = [
    PEER,
    Ping(b"12345678"),
    Pong(b"12345678"),
    Probe(id=1),
    ProbeReply(id=1),
    Rejected(code=11289),
    GoAway(reason="upgrade"),
    Fatal(code=28041),
]
NAMES = [KIND_OF[type(message)].name for message in ANY_OF_EACH]


def connection_in(state: LinkPhase) -> LinkStateMachine:
    """A connection that came to `state` at START by what its peer said."""
    connection = LinkStateMachine(OWN, now=START)
    said: dict[LinkPhase, list[LinkMessage]] = {
        LinkPhase.AWAIT_HELLO: [],
        LinkPhase.ONLINE: [PEER],
        LinkPhase.DRAINING: [PEER, GoAway()],
        LinkPhase.CLOSED: [PEER, Fatal()],
    }
    for message in said[state]:
        connection.receive(message, START)
    assert connection.state is state
    return connection


# --- frames ---


def test_hellos_bring_it_online() -> None:
    connection = LinkStateMachine(OWN, now=START)

    connection.receive(PEER, START + 1)

    assert connection.state is LinkPhase.ONLINE
    assert connection.agreement == agree(OWN, PEER)
    assert connection.last_heard == START + 1


@pytest.mark.parametrize("state", list(LinkPhase))
def test_ping_is_answered_without_being_decoded_where_it_may_come(state: LinkPhase) -> None:
    connection = connection_in(state)
    answer = encode_link(Pong(b"12345678")) if state in (LinkPhase.ONLINE, LinkPhase.DRAINING) else None

    assert answer == connection.maybe_pong(encode_link(Ping(b"12345678")))
    assert None is connection.maybe_pong(encode_link(Pong(b"12345678")))
    assert None is connection.maybe_pong(encode_link(Ping(b"1234")))


@pytest.mark.parametrize("message", ANY_OF_EACH, ids=NAMES)
@pytest.mark.parametrize("state", LinkPhase)
def test_each_state_takes_its_frames_and_no_other(state: LinkPhase, message: LinkMessage) -> None:
    """Which those are is compared with the page in test_protocol_page.py."""
    connection, kind = connection_in(state), KIND_OF[type(message)]
    after = TRANSITIONS.get((state, kind))

    if after is not None:
        connection.receive(message, START + 1)
        assert (after, START + 1) == (connection.state, connection.last_heard)
    else:
        with pytest.raises(OutOfSequenceError) as caught:
            connection.receive(message, START + 1)
        assert f"{kind.name} is not allowed while the connection is {state.value}" == str(caught.value)
        assert (state, START) == (connection.state, connection.last_heard)


def test_refused_hello_leaves_everything_as_it_was() -> None:
    connection = LinkStateMachine(OWN, now=START)

    with pytest.raises(HandshakeRefusedError, match="no version in common"):
        connection.receive(Hello(versions=(9,)), START + 1)

    assert (connection.state, connection.agreement, connection.last_heard) == (LinkPhase.AWAIT_HELLO, None, START)


@pytest.mark.parametrize(
    ("kind", "name"), [(0x02, "PING"), (0x10, "MESSAGE"), (0x12, "FAULT"), (0x13, "a frame of kind 0x13")]
)
def test_other_first_frame_is_refused_by_its_kind(kind: int, name: str) -> None:
    connection = LinkStateMachine(OWN, now=START)
    for expected in (FrameKind.HELLO, FrameKind.FATAL):
        connection.expect_link_frame(expected)
    assert connection.state is LinkPhase.AWAIT_HELLO

    with pytest.raises(OutOfSequenceError) as caught:
        connection.expect_link_frame(kind)

    assert f"{name} is not allowed while the connection is waiting for HELLO" == str(caught.value)


# --- time ---


def test_hello_is_waited_for_until_its_timeout() -> None:
    connection = LinkStateMachine(OWN, now=START, handshake_timeout=2.5)

    assert connection.tick(START + 2.4) == []
    with pytest.raises(HandshakeRefusedError) as caught:
        connection.tick(START + 2.5)

    assert str(caught.value) == "handshake refused: no HELLO within 2.5 s"


@pytest.mark.parametrize("state", [LinkPhase.ONLINE, LinkPhase.DRAINING])
def test_first_ping_goes_out_within_own_heartbeat_and_others_a_heartbeat_later(state: LinkPhase) -> None:
    connection = connection_in(state)
    first = START + 2 * first_ping(OWN.arbitration, PEER.arbitration)

    assert START < first <= START + 2
    assert connection.tick(first - 0.1) == []
    assert [encode_link(Ping(b"\0\0\0\0\0\0\0\1"))] == connection.tick(first)
    assert connection.tick(first + 1.9) == []
    assert [encode_link(Ping(b"\0\0\0\0\0\0\0\2"))] == connection.tick(first + 2)
    assert [] == connection_in(LinkPhase.CLOSED).tick(START + 1e6)


def first_ping(own: bytes, peer: bytes) -> float:
    """Heartbeats until one side of a connection asks for the first time, in hundredths."""
    connection = LinkStateMachine(Hello(arbitration=own, heartbeat_ms=1000), now=0.0)
    connection.receive(Hello(arbitration=peer), 0.0)
    return next(hundredth / 100 for hundredth in range(1, 101) if connection.tick(hundredth / 100))


def test_connections_made_at_one_instant_do_not_ask_in_step() -> None:
    """Neither those of one instance, nor the two sides of one; and the same ids ask at the same time."""
    ids = [number.to_bytes(16, "big") for number in range(1, 1001)]

    tenths = Counter(int(10 * first_ping(OWN.arbitration, peer) - 0.05) for peer in ids)

    assert set(range(10)) == set(tenths)
    assert max(tenths.values()) < 150
    assert first_ping(ids[0], ids[1]) != first_ping(ids[1], ids[0])
    assert first_ping(ids[0], ids[1]) == first_ping(ids[0], ids[1])


def test_who_sends_asks_once_a_heartbeat_all_the_same() -> None:
    """What was written to a peer that has stopped seems to leave; only an answer proves anything."""
    connection = connection_in(LinkPhase.ONLINE)
    connection.tick(START + 2)
    connection.last_sent = START + 3.9

    assert connection.tick(START + 3.9) == []
    assert [encode_link(Ping(b"\0\0\0\0\0\0\0\2"))] == connection.tick(START + 4)


def test_what_was_sent_and_is_answered_postpones_the_ping() -> None:
    connection = connection_in(LinkPhase.ONLINE)
    connection.tick(START + 2)
    connection.last_sent = START + 2.5

    connection.receive(Pong(b"\0\0\0\0\0\0\0\1"), START + 2.6)

    assert connection.tick(START + 4.4) == []
    assert [encode_link(Ping(b"\0\0\0\0\0\0\0\2"))] == connection.tick(START + 4.5)


def test_answer_tells_how_long_it_took() -> None:
    connection = connection_in(LinkPhase.ONLINE)
    connection.tick(START + 2)
    assert (connection.unanswered_since, connection.round_trip) == (START + 2, None)

    connection.receive(Pong(b"\0\0\0\0\0\0\0\1"), START + 2.25)

    assert (connection.unanswered_since, connection.round_trip) == (None, 0.25)


@pytest.mark.parametrize("payload", [b"\0\0\0\0\0\0\0\1", b"\0\0\0\0\0\0\0\3", bytes(8)])
def test_answer_to_something_else_proves_nothing(payload: bytes) -> None:
    connection = connection_in(LinkPhase.ONLINE)
    connection.tick(START + 2)
    connection.tick(START + 4)

    connection.receive(Pong(payload), START + 4.1)

    assert (connection.unanswered_since, connection.round_trip) == (START + 2, None)


def test_peer_is_given_up_after_three_of_its_own_heartbeats() -> None:
    connection = connection_in(LinkPhase.ONLINE)
    connection.tick(START + 8.5)

    assert connection.tick(START + 8.9) == []
    with pytest.raises(PeerSilentError) as caught:
        connection.tick(START + 9)

    assert caught.value == PeerSilentError(9.0)
    assert (caught.value.code, str(caught.value)) == (9760, "nothing received from the peer for 9.0 s")


# --- the end ---


@pytest.mark.parametrize("state", LinkPhase)
def test_fatal_tells_code_and_sentence_and_closes(state: LinkPhase) -> None:
    connection = connection_in(state)

    frame = connection.fatal(FrameMalformedError("unknown link kind 0x09"))

    assert decode_link(frame) == Fatal(28041, "malformed frame: unknown link kind 0x09")
    assert connection.state is LinkPhase.CLOSED


# --- handshake ---
# What two HELLOs lead to, and which of two connections stays.


LOW, HIGH = b"\x01" + b"\xff" * 15, b"\x02" + b"\x00" * 15
A_LOW = Hello(instance=b"o" * 16, arbitration=LOW, name="own", max_frame=65536, heartbeat_ms=1000)
A_HIGH = Hello(instance=b"p" * 16, arbitration=HIGH, name="peer", max_frame=131072, heartbeat_ms=2500)


@pytest.mark.parametrize(
    ("heartbeat_ms", "seconds"),
    [(-1, 0.1), (0, 0.1), (100, 0.1), (15_000, 15.0), (3_600_000, 3600.0), (3_600_001, 3600.0), (2**64 - 1, 3600.0)],
)
def test_heartbeat_is_clamped(heartbeat_ms: int, seconds: float) -> None:
    assert seconds == agree(A_LOW, replace(A_HIGH, heartbeat_ms=heartbeat_ms)).peer_heartbeat


@pytest.mark.parametrize(
    ("peer", "problem"),
    [
        (replace(A_HIGH, protocol="amqp"), "the peer speaks 'amqp', not 'sbrk'"),
        (replace(A_HIGH, protocol="x" * 10_000), "the peer speaks 'xxxxxxxx', not 'sbrk'"),
        (replace(A_HIGH, versions=(2, 3)), "no version in common: the peer speaks 2, 3, this instance 1"),
        (replace(A_HIGH, versions=()), "no version in common: the peer speaks none, this instance 1"),
        (
            replace(A_HIGH, versions=tuple(range(2, 1000))),
            "no version in common: the peer speaks 2, 3, 4, 5, 6, 7, 8, 9, ..., this instance 1",
        ),
        (replace(A_HIGH, max_frame=4095), "max_frame of 4095 bytes, not 4096 .. 16777216"),
        (replace(A_HIGH, max_frame=16_777_217), "max_frame of 16777217 bytes, not 4096 .. 16777216"),
        (replace(A_HIGH, max_frame=-1), "max_frame of -1 bytes, not 4096 .. 16777216"),
    ],
)
def test_hello_that_cannot_be_agreed_with_is_refused(peer: Hello, problem: str) -> None:
    with pytest.raises(HandshakeRefusedError) as caught:
        agree(A_LOW, peer)

    assert problem == caught.value.problem


@pytest.mark.parametrize(
    ("own", "peer", "is_self"),
    [
        ({}, {"arbitration": LOW}, True),
        ({}, {}, False),
        ({"arbitration": NO_GUID}, {"arbitration": NO_GUID}, False),
        ({}, {"arbitration": NO_GUID}, False),
        ({}, {"instance": b"o" * 16}, True),  # another process of the same instance
        ({"instance": NO_GUID}, {"instance": NO_GUID}, False),
    ],
)
def test_same_arbitration_or_instance_id_is_this_instance(
    own: dict[str, bytes], peer: dict[str, bytes], *, is_self: bool
) -> None:
    assert is_self is agree(replace(A_LOW, **own), replace(A_HIGH, **peer)).is_self


@pytest.mark.parametrize(
    ("own", "peer", "opened_here", "expected"),
    [(LOW, HIGH, True, True), (LOW, HIGH, False, False), (HIGH, LOW, True, False), (HIGH, LOW, False, True)],
)
def test_connection_opened_by_the_lower_id_stays(own: bytes, peer: bytes, *, opened_here: bool, expected: bool) -> None:
    assert expected is stays(own, peer, opened_here=opened_here)
