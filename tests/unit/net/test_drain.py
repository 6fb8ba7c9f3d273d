"""An instance leaves in stages, within its bounds, and says what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from broker.net.drain import PROBED_SECONDS, STUCK_SECONDS, Drain, DrainBounds, DrainStage, Left
from tests.support.played import PlayedLoop

HELD = Left(held=3, unserved=0, peers=1, by_hop={"tcp://north:4022": 3})
STUCK = Left(held=3, unserved=3, by_hop={"tcp://north:4022": 3})


class Leaver:
    """Notes what it is told, and leaves as the test says. Shape: `told` with the instant of each."""

    def __init__(self, left: Callable[[float], Left], *, seconds: float = 0.0) -> None:
        self.told: list[tuple[str, float]] = []
        self._left = left
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()

    def on_drain(self) -> None:
        self.told.append(("drain", round(self._loop.time(), 3)))

    async def leave(self, seconds: float) -> None:
        self.told.append((f"leave within {seconds:.1f}", round(self._loop.time(), 3)))
        await asyncio.sleep(self._seconds)

    async def left(self) -> Left:
        return self._left(self._loop.time())


def drain_of(leaver: Leaver, *, announce: float = 5.0, timeout: float = 25.0) -> Drain:
    return Drain(leaver, lambda: DrainBounds(announce, timeout))


async def drained(drain: Drain) -> float:
    """Drain; virtual seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await drain.end("SIGTERM")
    return loop.time() - began


async def test_instance_with_nothing_to_do_has_left_at_once(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: Left())
    drain = drain_of(leaver)
    assert (False, "serving", None) == (drain.has_begun, drain.sentence, drain.told)

    seconds = await drained(drain)

    assert (0.0, DrainStage.LEFT, True, "drained") == (seconds, drain.stage, drain.is_clean, drain.sentence)
    assert [("drain", loop.time()), ("leave within 25.0", loop.time())] == leaver.told


@pytest.mark.parametrize(("before", "expected"), [(0.0, 5.0), (PROBED_SECONDS - 1, 5.0), (PROBED_SECONDS + 1, 0.0)])
async def test_leaving_is_announced_while_somebody_asks_for_readiness(
    loop: PlayedLoop, before: float, expected: float
) -> None:
    drain = drain_of(Leaver(lambda _: Left()))
    drain.probed()
    await asyncio.sleep(before)

    assert expected == pytest.approx(await drained(drain))


async def test_announcement_counts_as_a_part_of_the_time(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: HELD)
    drain = drain_of(leaver, announce=5.0, timeout=8.0)
    drain.probed()

    assert 8.0 == pytest.approx(await drained(drain))
    assert "leave within 3.0" == leaver.told[-1][0]


async def test_it_waits_until_nothing_is_left(loop: PlayedLoop) -> None:
    began = loop.time()
    drain = drain_of(Leaver(lambda now: HELD if now < began + 3.0 else Left()))

    assert 3.0 <= await drained(drain) <= 3.2
    assert drain.is_clean


async def test_time_that_is_up_ends_it_and_the_log_tells_what_was_left(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: HELD))

    with capture_logs() as logs:
        seconds = await drained(drain)

    assert 25.0 == pytest.approx(seconds)
    assert not drain.is_clean
    assert "not drained: 3 held, 1 peer left" == drain.sentence
    (last,) = [entry for entry in logs if entry["event"] == "instance not drained"]
    assert ({"tcp://north:4022": 3}, 3, 1) == (last["by_hop"], last["held"], last["peers"])
    assert 20 <= len([entry for entry in logs if entry["event"] == "draining"]) <= 26


async def test_leaving_itself_is_bounded_as_well(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: Left(peers=1), seconds=1000.0))

    assert 25.0 == pytest.approx(await drained(drain))
    assert not drain.is_clean


async def test_next_hops_that_nobody_reaches_are_waited_for_a_while_only(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: STUCK))

    assert STUCK_SECONDS <= await drained(drain) <= STUCK_SECONDS + 0.2
    assert not drain.is_clean


async def test_it_begins_once_however_often_it_is_asked_for(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: HELD)
    drain = drain_of(leaver, announce=0.0, timeout=2.0)

    drain.begin("SIGTERM")
    drain.begin("asked for by somebody")
    await drain.end("at last")

    assert ("SIGTERM", 2) == (drain.reason, len(leaver.told))


async def test_whoever_follows_hears_of_every_change_and_of_the_end(loop: PlayedLoop) -> None:
    began = loop.time()
    drain = drain_of(Leaver(lambda now: HELD if now < began + 2.5 else Left()))
    told: list[str] = []
    drain.on_change = lambda: told.append(drain.sentence)

    drain.begin("SIGTERM")
    sentences = []
    while drain.stage is not DrainStage.LEFT:
        await drain.changed(drain.changes, 10.0)
        sentences.append(drain.sentence)

    assert "drained" == sentences[-1] == told[-1]
    assert "draining: announced, 25 s" == told[0]
    assert "draining: 3 held, 1 peer left, 25 s" in sentences
    assert "draining: 3 held, 1 peer left, 23 s" in sentences


async def test_whoever_follows_is_answered_after_a_while_though_nothing_changes(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: Left()))
    began = loop.time()

    await drain.changed(0, 10.0)

    assert 10.0 == pytest.approx(loop.time() - began)


async def test_dry_look_tells_what_would_have_to_leave_and_begins_nothing(loop: PlayedLoop) -> None:
    leaver = Leaver(lambda _: HELD)
    drain = drain_of(leaver)

    assert HELD == await drain.look()

    assert (False, []) == (drain.has_begun, leaver.told)


async def test_status_tells_stage_reason_and_what_is_left(loop: PlayedLoop) -> None:
    drain = drain_of(Leaver(lambda _: HELD))

    drain.begin("SIGTERM")
    await asyncio.sleep(1.0)

    assert drain.told is not None
    remaining = drain.told.pop("remaining_s")
    assert 24.0 == pytest.approx(remaining)
    assert drain.told | {"remaining_s": 0} == {
        "stage": "leaving",
        "reason": "SIGTERM",
        "sentence": "draining: 3 held, 1 peer left, 24 s",
        "held": 3,
        "peers": 1,
        "by_hop": {"tcp://north:4022": 3},
        "busy": [],
        "remaining_s": 0,
    }
    await drain.end("SIGTERM")
