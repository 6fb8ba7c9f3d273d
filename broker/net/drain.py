"""
How an instance leaves, from the first word to the last: announced, told to its peers, and waited for within a bound.

First it is not ready any more and goes on as before, for as long as those who ask for readiness need to notice. Then
nobody new is taken, every peer is told GOAWAY and moves, databases send nothing new, and what is held leaves. It ends
when nothing is left, when what is left waits for next hops that nobody reaches, or when the time is up. What is done at
each stage is up to the instance that leaves. Loop-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from broker.forwarding.outbox import Outbox
from broker.net.link import Link, LinkState
from broker.net.peer_table import Addresses
from broker.protocol.frame import GoAway, encode_link
from broker.routing.address import NetworkAddress

# --- departures ---
# Links whose peers are leaving: each is used until another leads on, then our direction of it is closed.
#
# A peer that says GOAWAY takes frames until its deadline. Meanwhile what this instance sends there looks for another
# way:
# the same address is dialled again, where another process of the peer or its successor may answer, and so is every
# other
# address that leads on. A link is given up when one of them serves in its place, when none of them is to be expected
# any
# more, or at the deadline; the peer then knows by the end of our direction that nothing more comes. Loop-only.
#
# Source: docs/protocol.md, "GOAWAY".


LEAVING_MAX = 60.0  # seconds that a peer which drains is heard out, whatever deadline it names
LEAST_SECONDS = 0.1  # for what is under way to ask for another way

GiveUp = Callable[[Link], None]


def has_parted(outlet: object) -> bool:
    """Whether what this outlet was given arrives, though it takes nothing any more: its peer left in good order."""
    return isinstance(outlet, Link) and outlet.left_cleanly


@dataclass(slots=True)
class _Departure:
    """Shape: `until` the deadline, loop time; `hopes` addresses that may serve in place of the link, being dialled."""

    least_at: float
    until: float
    hopes: set[NetworkAddress] = field(default_factory=set)


class PeerDepartures:
    """
    Args:
        addresses: Tells which of them are being dialled.
        dial: Dials an address, unless that is under way.
        give_up: Told once of each link that is of no more use.
    """

    def __init__(self, addresses: Addresses, dial: Callable[[NetworkAddress], None], give_up: GiveUp) -> None:
        self._addresses = addresses
        self._dial = dial
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._departures: dict[Link, _Departure] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._departures)

    def begin(self, link: Link, seconds: float, addresses: Iterable[NetworkAddress]) -> None:
        """The peer of a link leaves in so many seconds; these addresses may serve in its place."""
        now = self._loop.time()
        departure = self._departures[link] = _Departure(now + min(seconds, LEAST_SECONDS), now + seconds)
        for address in addresses:
            departure.hopes.add(address)
            self._dial(address)
        self._look_at(departure.least_at)

    def postpone(self, link: Link, seconds: float) -> None:
        """The peer says it again: another deadline."""
        departure = self._departures.get(link)
        if departure is not None:
            departure.until = self._loop.time() + seconds

    def remaining(self, link: Link) -> float:
        """Seconds to the deadline of a link; 0 when it is not here."""
        departure = self._departures.get(link)
        return 0.0 if departure is None else max(0.0, departure.until - self._loop.time())

    def wanted(self, address: NetworkAddress) -> None:
        """Frames that may have lost their next hop ask for this one."""
        for departure in self._departures.values():
            departure.hopes.add(address)

    def forget(self, link: Link) -> None:
        """The link has ended."""
        self._departures.pop(link, None)

    def look(self) -> None:
        """Dialling has come to something, or time has passed: give up what is of no more use."""
        now = self._loop.time()
        for link, departure in list(self._departures.items()):
            is_hoping = any(
                (attempts := self._addresses.attempts.get(address)) is not None and attempts.is_under_way
                for address in departure.hopes
            )
            if now >= departure.until or (now >= departure.least_at and not is_hoping):
                self._give_up(link)
                self.forget(link)

    def close(self) -> None:
        """Nothing is awaited any more."""
        self._departures.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        """One timer for all: the last one that began is the last to have had its least time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self.look)


# --- farewell ---
# This instance leaves: what it has told its peers, and what of its work is left.
#
# Every peer is told GOAWAY, also one whose HELLO comes later. A peer that has moved away ends its direction, and
# reads
# on; one that does not know of this falls silent. Until then what it sends is passed on, and what is for it leaves on
# the
# same link. Loop-only.
#
# Source: docs/protocol.md, "GOAWAY".


HOPS_MAX = 20  # next hops that are named
QUIET_SECONDS = 2.0  # without a dialog frame after which a peer counts as moved that has not said so


@dataclass(frozen=True, slots=True)
class Left:
    """
    What has not left yet.

    Shape: `held` frames, in `by_hop` those of the next hops with most; `unserved` how many of them no link takes now;
    `peers` connections whose peers may still send; `busy` databases that have yet to store or acknowledge what came.
    """

    held: int = 0
    unserved: int = 0
    peers: int = 0
    by_hop: dict[str, int] = field(default_factory=dict)
    busy: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether all is done."""
        return not (self.held or self.peers or self.busy)

    @property
    def is_stuck(self) -> bool:
        """Whether all that is left waits for next hops that nobody reaches."""
        return self.held == self.unserved and not (self.peers or self.busy)

    @property
    def fields(self) -> dict[str, Any]:
        """For a line of the log."""
        return {"held": self.held, "peers": self.peers, "by_hop": self.by_hop, "busy": list(self.busy)}

    def __str__(self) -> str:
        peers = f"{self.peers} peer{'' if self.peers == 1 else 's'} left"
        busy = f", busy: {', '.join(self.busy)}" if self.busy else ""
        return f"{self.held} held, {peers}{busy}"


class OwnDeparture:
    """Shape: `is_said` once the peers were told."""

    def __init__(self) -> None:
        self.is_said = False
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._until = 0.0
        self._heard: dict[Link, tuple[int, float]] = {}  # frames received, and since when there are so many

    def say(self, links: Iterable[Link], *, reason: str, seconds: float) -> None:
        """From now on every peer knows that this instance leaves in so many seconds."""
        self.is_said = True
        self._reason, self._until = reason, self._loop.time() + seconds
        for link in links:
            self.greet(link)

    def greet(self, link: Link) -> None:
        """The same to a peer whose HELLO has come; nothing before that, and nothing while this instance stays."""
        if self.is_said and link.agreement is not None:
            left_ms = max(0, int((self._until - self._loop.time()) * 1000))
            link.send_control(encode_link(GoAway(reason=self._reason, deadline_ms=left_ms)))

    def left(self, links: Iterable[Link], outboxes: Iterable[Outbox]) -> Left:
        """What has not left yet, of all links and outboxes that there are."""
        boxes = [outbox for outbox in outboxes if outbox.held]
        by_hop = Counter[str]()
        for outbox in boxes:
            by_hop[str(outbox.address)] += len(outbox.held)
        unserved = sum(len(outbox.held) for outbox in boxes if outbox.outlet is None)
        return Left(by_hop.total(), unserved, self._staying(links), dict(by_hop.most_common(HOPS_MAX)))

    def _staying(self, links: Iterable[Link]) -> int:
        """How many of these links have peers that may still send."""
        now = self._loop.time()
        heard, self._heard = self._heard, {}
        staying = 0
        for link in links:
            if link.state is not LinkState.LOGGED_IN or link.has_peer_finished:
                continue
            count = link.received.total()
            known, since = heard.get(link, (count, now))
            self._heard[link] = count, since if known == count else now
            staying += now - self._heard[link][1] < QUIET_SECONDS
        return staying


PROBED_SECONDS = 60.0  # readiness that nobody asked for that long is not announced
STUCK_SECONDS = 5.0  # for next hops that nobody reaches to come back
POLL_FIRST, POLL_MAX = 0.01, 0.1  # seconds between two looks at what is left
TOLD_SECONDS = 1.0  # between two lines in the log

log = structlog.get_logger(__name__)


class DrainStage(StrEnum):
    """How far it is."""

    SERVING = "serving"
    ANNOUNCED = "announced"  # not ready any more; everything else as before
    LEAVING = "leaving"  # peers move, what is held leaves
    LEFT = "left"  # nothing is waited for any more


@dataclass(frozen=True, slots=True)
class DrainBounds:
    """Seconds. Shape: `announce` for the first stage where readiness is asked for; `timeout` for all of it."""

    announce: float
    timeout: float


class Leaver(Protocol):
    """Who leaves."""

    def on_drain(self) -> None:
        """It begins: not ready any more."""

    async def leave(self, seconds: float) -> None:
        """Take nobody new, tell every peer, send nothing new; all within so many seconds from now."""

    async def left(self) -> Left:
        """What has not left yet."""


class Drain:
    """
    The leaving of one instance.

    Args:
        leaver: Who leaves.
        bounds_of: Asked when it begins.

    Shape: `reason` why, "" while it serves; `left` as of the last look; `changes` counts what was told of it;
    `on_change` is told too, to be set by those who want to know; `process` the one that ends behind it, set by whoever
    runs it, None where an application goes on without it.
    """

    def __init__(self, leaver: Leaver, bounds_of: Callable[[], DrainBounds]) -> None:
        self.stage = DrainStage.SERVING
        self.reason = ""
        self.left = Left()
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None
        self.process: int | None = None
        self._leaver = leaver
        self._bounds_of = bounds_of
        self._loop = asyncio.get_running_loop()
        self._probed_at = -math.inf
        self._until = math.inf
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether it leaves, or has left."""
        return self.stage is not DrainStage.SERVING

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left behind; False before the end."""
        return self.stage is DrainStage.LEFT and self.left.is_nothing

    @property
    def remaining_s(self) -> float:
        """Seconds until the time is up; infinite while it serves."""
        return max(0.0, self._until - self._loop.time())

    @property
    def sentence(self) -> str:
        """How far it is, in words."""
        match self.stage:
            case DrainStage.SERVING:
                return "serving"
            case DrainStage.ANNOUNCED:
                return f"draining: announced, {math.ceil(self.remaining_s)} s"
            case DrainStage.LEAVING:
                return f"draining: {self.left}, {math.ceil(self.remaining_s)} s"
            case DrainStage.LEFT:
                return "drained" if self.is_clean else f"not drained: {self.left}"

    @property
    def told(self) -> dict[str, Any] | None:
        """For a status; None while it serves."""
        if self.stage is DrainStage.SERVING:
            return None
        state = {"stage": self.stage.value, "reason": self.reason, "sentence": self.sentence}
        return state | self.left.fields | {"remaining_s": round(self.remaining_s, 3)}

    def probed(self) -> None:
        """Somebody asks whether to send anything here, and will ask again."""
        self._probed_at = self._loop.time()

    def begin(self, reason: str) -> None:
        """Leave, for this reason. Nothing happens when it has begun."""
        if self._task is not None:
            return
        self.reason = reason
        self._task = self._loop.create_task(self._run(self._bounds_of()), name="drain")

    async def end(self, reason: str) -> None:
        """Wait until it has left; it begins now, for this reason, if it has not begun."""
        self.begin(reason)
        assert self._task is not None
        await self._task

    async def look(self) -> Left:
        """What would have to leave, or has yet to."""
        if self.stage is not DrainStage.LEFT:
            self.left = await self._leaver.left()
        return self.left

    async def changed(self, since: int, seconds: float) -> None:
        """Wait until something is told that was not at `since` changes, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.changes <= since:
                    await self._changed.wait()

    async def _run(self, bounds: DrainBounds) -> None:
        now = self._loop.time()
        self._until = now + bounds.timeout
        is_asked = now - self._probed_at < PROBED_SECONDS
        announce = min(bounds.announce, bounds.timeout) if is_asked else 0.0
        log.info("instance draining", reason=self.reason, announce_s=announce, timeout_s=bounds.timeout)
        self._leaver.on_drain()
        self._go_to(DrainStage.ANNOUNCED)
        try:
            await asyncio.sleep(announce)
            self._go_to(DrainStage.LEAVING)
            async with asyncio.timeout(max(0.0, self.remaining_s)):
                await self._leaver.leave(self.remaining_s)
                await self._until_left()
        except TimeoutError:
            await self.look()
        finally:
            self._go_to(DrainStage.LEFT)
        if self.is_clean:
            log.info("instance drained", seconds=round(self._loop.time() - now, 3))
        else:
            log.warning("instance not drained", **self.left.fields, seconds=round(self._loop.time() - now, 3))

    async def _until_left(self) -> None:
        """Until nothing is left, or what is left has no hope."""
        begun_at = self._loop.time()
        told, tell_at, pause = Left(), begun_at, POLL_FIRST
        while not (left := await self.look()).is_nothing:
            now = self._loop.time()
            if left.is_stuck and now >= begun_at + STUCK_SECONDS:
                return
            if left != told or now >= tell_at:
                self._tell()
            if now >= tell_at:
                log.info("draining", **left.fields, remaining_s=round(self.remaining_s, 1))
                tell_at = now + TOLD_SECONDS
            told, pause = left, min(POLL_MAX, pause * 1.5)
            await asyncio.sleep(pause)

    def _go_to(self, stage: DrainStage) -> None:
        self.stage = stage
        self._tell()

    def _tell(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed.clear()
        self.on_change()
