"""An instance leaves in stages, within its bounds, and says what is left."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from broker.config.settings import DrainSettings
from broker.net.drain import (
    LEAST_SECONDS,
    PROBED_SECONDS,
    QUIET_SECONDS,
    STUCK_SECONDS,
    Drain,
    DrainRemainder,
    DrainStage,
)
from broker.protocol.frame import GoAway, encode_link
from tests.support.peers import HIGHER, LOWER, NORTH, SOUTH, Neighbourhood, said
from tests.support.played import PlayedLoop

# --- departures of peers ---


GOAWAY = encode_link(GoAway(deadline_ms=5000))


async def test_link_that_nobody_could_replace_is_given_up_after_the_least_time(near: Neighbourhood) -> None:
    sock = near.accept()
    sock.feed(GOAWAY)

    await asyncio.sleep(LEAST_SECONDS - 0.01)
    near.accept(arbitration=HIGHER)  # then departures are looked through
    assert not sock.shut
    await asyncio.sleep(0.02)

    assert sock.shut


async def test_link_is_used_while_an_address_that_may_replace_it_is_dialled_until_a_deadline_that_may_be_moved(
    near: Neighbourhood,
) -> None:
    first, second = (near.accept(arbitration=arbitration) for arbitration in (LOWER, HIGHER))
    first.feed(GOAWAY)
    second.feed(GOAWAY)
    near.reachable.add(SOUTH)
    near.peers.request_link(SOUTH)  # is dialled, and says no HELLO

    await asyncio.sleep(2)
    second.feed(encode_link(GoAway(deadline_ms=10_000)))
    assert (False, False) == (first.shut, second.shut)
    await asyncio.sleep(4.5)
    assert (True, False) == (first.shut, second.shut)
    near.socks[-1].end()
    await asyncio.sleep(1.5)

    assert second.shut


# --- an instance ---


HELD = DrainRemainder(held=3, unserved=0, peers=1, by_hop={"tcp://north:4022": 3})
STUCK = DrainRemainder(held=3, unserved=3, by_hop={"tcp://north:4022": 3})


class Leaver:
    """Notes what it is told, and leaves as the test says. Shape: `told` with the instant of each."""

    def __init__(self, left: Callable[[float], DrainRemainder], *, seconds: float = 0.0) -> None:
        self.told: list[tuple[str, float]] = []
        self._left = left
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()

    def on_drain(self) -> None:
        self.told.append(("drain", round(self._loop.time(), 3)))

    async def leave(self, seconds: float) -> None:
        self.told.append((f"leave within {seconds:.1f}", round(self._loop.time(), 3)))
        await asyncio.sleep(self._seconds)

    async def remainder(self) -> DrainRemainder:
        return self._left(self._loop.time())


def drain_of(leaver: Leaver, *, announce: float = 5.0, timeout: float = 25.0) -> Drain:
    return Drain(leaver, lambda: DrainSettings(announce=announce, timeout=timeout))


async def drained(drain: Drain) -> float:
    """Drain; virtual seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await drain.end("SIGTERM")
    return loop.time() - began


async def test_instance_with_nothing_to_do_has_left_at_once(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: DrainRemainder())
    drain = drain_of(leaver)
    assert (False, "serving", None) == (drain.has_begun, drain.sentence, drain.told)

    seconds = await drained(drain)

    assert (0.0, DrainStage.LEFT, True, "drained") == (seconds, drain.stage, drain.is_clean, drain.sentence)
    assert [("drain", loop.time()), ("leave within 25.0", loop.time())] == leaver.told


@pytest.mark.parametrize(("before", "expected"), [(0.0, 5.0), (PROBED_SECONDS - 1, 5.0), (PROBED_SECONDS + 1, 0.0)])
async def test_leaving_is_announced_while_somebody_asks_for_readiness(
    loop: PlayedLoop, before: float, expected: float
) -> None:
    drain = drain_of(Leaver(lambda _: DrainRemainder()))
    drain.probed()
    await asyncio.sleep(before)

    assert expected == pytest.approx(await drained(drain))


async def test_announcement_counts_as_a_part_of_the_time(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: HELD)
    drain = drain_of(leaver, announce=5.0, timeout=8.0)
    drain.probed()

    assert 8.0 == pytest.approx(await drained(drain))
    assert "leave within 3.0" == leaver.told[-1][0]


async def test_time_that_is_up_ends_it_and_the_log_tells_what_was_left(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: HELD))

    with capture_logs() as logs:
        assert 25.0 == pytest.approx(await drained(drain))

    assert (False, "not drained: 3 held, 1 peer left") == (drain.is_clean, drain.sentence)
    (last,) = [entry for entry in logs if entry["event"] == "instance not drained"]
    assert ({"tcp://north:4022": 3}, 3, 1) == (last["by_hop"], last["held"], last["peers"])


async def test_leaving_itself_is_bounded_as_well(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: DrainRemainder(peers=1), seconds=1000.0))

    assert 25.0 == pytest.approx(await drained(drain))
    assert not drain.is_clean


async def test_next_hops_that_nobody_reaches_are_waited_for_a_while_only(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: STUCK))

    assert STUCK_SECONDS <= await drained(drain) <= STUCK_SECONDS + 0.2
    assert not drain.is_clean


async def test_whoever_follows_hears_of_every_change_and_of_the_end(loop: PlayedLoop) -> None:
    """Also when it is asked for again meanwhile, which changes nothing."""
    began = loop.time()
    leaver = Leaver(lambda now: HELD if now < began + 2.5 else DrainRemainder())
    drain = drain_of(leaver)
    told: list[str] = []
    drain.followers.append(lambda: told.append(drain.sentence))

    drain.begin("SIGTERM")
    drain.begin("asked for by somebody")
    sentences = []
    while drain.stage is not DrainStage.LEFT:
        await drain.changed(drain.changes, 10.0)
        sentences.append(drain.sentence)

    assert ("draining: announced, 25 s", "drained", "drained") == (told[0], told[-1], sentences[-1])
    assert {f"draining: 3 held, 1 peer left, {left} s" for left in (25, 23)} <= set(sentences)
    assert ("SIGTERM", 2) == (drain.reason, len(leaver.told))


async def test_dry_look_tells_what_would_have_to_leave_and_begins_nothing(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: HELD)
    drain = drain_of(leaver)

    assert (HELD, False, []) == (await drain.poll(), drain.has_begun, leaver.told)


async def test_status_tells_stage_reason_and_what_is_left(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: HELD))

    drain.begin("SIGTERM")
    await asyncio.sleep(1.0)

    assert drain.told == {
        "stage": "leaving",
        "reason": "SIGTERM",
        "sentence": "draining: 3 held, 1 peer left, 24 s",
        "held": 3,
        "peers": 1,
        "by_hop": {"tcp://north:4022": 3},
        "busy": [],
        "remaining_s": pytest.approx(24.0),
    }
    await drain.end("SIGTERM")


# --- farewell ---


def goaways(near: Neighbourhood) -> list[list[GoAway]]:
    """What each neighbour was told of our leaving."""
    return [[one for one in said(sock) if isinstance(one, GoAway)] for sock in near.socks]


async def test_peers_are_told_once_and_a_late_one_with_what_is_left_of_the_time(near: Neighbourhood) -> None:
    near.accept(arbitration=LOWER)
    late = near.accept(is_greeting=False)

    near.peers.own_departure.announce(reason="upgrade", seconds=5.0)
    await asyncio.sleep(2)
    near.greet(late, arbitration=HIGHER)

    assert [[GoAway("upgrade", 5000)], [GoAway("upgrade", 3000)]] == goaways(near)


async def test_peer_that_has_ended_its_direction_has_moved_and_still_gets_what_is_for_it(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH)])
    near.peers.own_departure.announce(reason="upgrade", seconds=5.0)
    assert 1 == near.peers.own_departure.remainder().peers

    sock.end()
    frame = near.send(NORTH)

    assert (0, False) == (near.peers.own_departure.remainder().peers, sock.is_closed)
    assert sock.written.endswith(frame)


async def test_peer_that_says_nothing_of_moving_counts_as_moved_when_no_frames_come(near: Neighbourhood) -> None:
    sock, frame = near.accept(), near.send(SOUTH)
    near.peers.own_departure.announce(reason="upgrade", seconds=60.0)

    for _ in range(3):
        assert 1 == near.peers.own_departure.remainder().peers
        await asyncio.sleep(QUIET_SECONDS - 0.1)
        sock.feed(frame)
    await asyncio.sleep(0)
    assert 1 == near.peers.own_departure.remainder().peers
    await asyncio.sleep(QUIET_SECONDS)

    assert 0 == near.peers.own_departure.remainder().peers


async def test_what_is_held_is_counted_by_next_hop(near: Neighbourhood) -> None:
    blocked = near.accept(addresses=[str(SOUTH)])
    blocked.room = 0
    near.send(SOUTH, 1)
    near.send(NORTH, 2)
    near.send(NORTH, 3)

    left = near.peers.own_departure.remainder()

    assert DrainRemainder(held=3, unserved=2, peers=1, by_hop={str(NORTH): 2, str(SOUTH): 1}) == left


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (DrainRemainder(), (True, True, "0 held, 0 peers left")),
        (DrainRemainder(held=2, unserved=2), (False, True, "2 held, 0 peers left")),
        (DrainRemainder(held=2, unserved=1), (False, False, "2 held, 0 peers left")),
        (DrainRemainder(peers=1), (False, False, "0 held, 1 peer left")),
        (DrainRemainder(busy=("orders",)), (False, False, "0 held, 0 peers left, busy: orders")),
    ],
)
def test_what_is_left_says_whether_it_is_worth_waiting(left: DrainRemainder, expected: tuple[bool, bool, str]) -> None:
    assert expected == (left.is_nothing, left.is_stuck, str(left))


async def test_instance_that_leaves_goes_nowhere_itself_when_its_peer_leaves_too(near: Neighbourhood) -> None:
    near.reachable.add(NORTH)
    near.send(NORTH)
    await asyncio.sleep(0)
    near.greet(near.socks[0])
    near.peers.own_departure.announce(reason="upgrade", seconds=5.0)

    near.socks[0].feed(GOAWAY)
    await asyncio.sleep(0.2)

    assert (1, True) == (len(near.dialled), near.socks[0].shut)
