"""What a link does is told by what has really moved: a peer that has stopped does not keep it flowing."""

from __future__ import annotations

import pytest

from broker.net.link import ANSWER_SHARE, BLOCKED_SECONDS, FLOW_SECONDS, FlowState
from broker.protocol.frame import GoAway, Pong, encode_link
from tests.support.link import OWN, LinkEnds, message
from tests.support.played import PlayedLoop

HEARTBEAT = OWN.heartbeat_ms / 1000


@pytest.fixture
async def ends(loop: PlayedLoop) -> LinkEnds:
    return LinkEnds(loop)


def look(ends: LinkEnds, after: float = 0.0) -> tuple[FlowState, str]:
    flow = ends.link.flow.look(ends.link, ends.loop.time() + after)
    return flow.state, flow.why


async def test_link_before_hello_is_opening(ends: LinkEnds) -> None:
    ends.start()

    assert look(ends) == (FlowState.OPENING, "HELLO of the peer has not come")


async def test_link_that_carries_nothing_is_idle(ends: LinkEnds) -> None:
    ends.go_online()

    assert look(ends, FLOW_SECONDS) == (FlowState.IDLE, "")


async def test_frame_that_came_is_flow_for_a_while(ends: LinkEnds) -> None:
    ends.go_online()
    ends.sock.feed(message())

    assert [look(ends), look(ends, FLOW_SECONDS)] == [(FlowState.FLOWING, ""), (FlowState.IDLE, "")]


async def test_frame_that_left_is_flow_for_a_while(ends: LinkEnds) -> None:
    ends.go_online()
    look(ends)
    ends.link.send(message())

    assert [look(ends, 0.5), look(ends, 0.5 + FLOW_SECONDS)] == [(FlowState.FLOWING, ""), (FlowState.IDLE, "")]


async def test_link_frames_are_no_flow(ends: LinkEnds) -> None:
    ends.go_online()
    look(ends)
    look(ends, FLOW_SECONDS)
    for _ in range(100):
        ends.link.say(encode_link(Pong(bytes(8))))

    assert look(ends, FLOW_SECONDS) == (FlowState.IDLE, "")


async def test_peer_that_does_not_answer_is_stalled_though_it_is_written_to(ends: LinkEnds) -> None:
    ends.go_online()
    now = ends.loop.time()
    ends.link.tick(now + HEARTBEAT)
    ends.link.send(message())
    assert look(ends, HEARTBEAT + 0.01) == (FlowState.FLOWING, "")

    ends.link.send(message())

    assert look(ends, HEARTBEAT * (1 + ANSWER_SHARE)) == (FlowState.STALLED, "the peer does not answer")


async def test_peer_that_is_heard_is_not_stalled(ends: LinkEnds) -> None:
    """Its answer may be behind a lot that it sends."""
    ends.go_online()
    now = ends.loop.time()
    ends.link.tick(now + HEARTBEAT)

    ends.link.connection.last_heard = now + HEARTBEAT * 1.4

    assert look(ends, HEARTBEAT * (1 + ANSWER_SHARE))[0] is FlowState.IDLE


async def test_answer_ends_the_doubt_and_is_progress(ends: LinkEnds) -> None:
    ends.go_online()
    now = ends.loop.time()
    ends.link.tick(now + HEARTBEAT)
    assert look(ends, HEARTBEAT * 2)[0] is FlowState.STALLED

    ends.sock.feed(encode_link(Pong(b"\0\0\0\0\0\0\0\1")))

    assert look(ends, HEARTBEAT * 2) == (FlowState.IDLE, "")
    assert ends.link.flow.progress_at == ends.link.connection.last_heard == now


async def test_socket_that_takes_nothing_is_blocked(ends: LinkEnds) -> None:
    ends.go_online()
    look(ends)
    ends.sock.room = 10
    ends.link.send(message())
    assert look(ends)[0] is FlowState.FLOWING

    assert look(ends, BLOCKED_SECONDS) == (FlowState.BLOCKED, "the peer takes nothing more")


async def test_link_that_is_not_read_is_blocked_and_says_why(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.pause()
    assert look(ends) == (FlowState.BLOCKED, "it is not read: endpoint.backpressure")

    ends.link.slowed_by.add("limits.bytes_per_second")

    assert look(ends) == (FlowState.BLOCKED, "it is not read: limits.bytes_per_second")


async def test_link_that_is_not_read_does_not_blame_its_peer(ends: LinkEnds) -> None:
    """The answer may be there and not listened to."""
    ends.go_online()
    ends.link.tick(ends.loop.time() + HEARTBEAT)
    ends.link.pause()

    assert look(ends, 2 * HEARTBEAT)[0] is FlowState.BLOCKED


async def test_link_that_is_ended_is_leaving_and_then_down(ends: LinkEnds) -> None:
    ends.go_online()
    ends.link.drain()
    assert look(ends)[0] is FlowState.LEAVING

    ends.link.close("for the test")

    assert look(ends) == (FlowState.DOWN, "for the test")


async def test_state_has_an_age(ends: LinkEnds) -> None:
    ends.go_online()
    now = ends.loop.time()
    look(ends, FLOW_SECONDS)
    look(ends, FLOW_SECONDS + 1)

    assert ends.link.flow.since == now + FLOW_SECONDS


async def test_goaway_is_progress(ends: LinkEnds) -> None:
    ends.go_online()

    ends.sock.feed(encode_link(GoAway(deadline_ms=1000)))
    look(ends)

    assert ends.link.flow.progress_at == ends.link.connection.last_heard
