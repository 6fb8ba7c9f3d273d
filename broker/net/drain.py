"""
Drain: how an instance leaves, and how it follows peers that leave.

An instance first reports that it is not ready, and works as before for as long as load balancers need to notice. Then
it accepts no new peers, sends every peer GOAWAY, and databases send nothing new; the frames that are held are sent. The
drain ends when no frames remain, when those that remain wait for next hops that are not reached, or when the time is
up. A peer that has moved away closes its direction and continues to read; a peer that does not know GOAWAY falls
silent. Until then its frames are forwarded, and frames for it are sent on the same link.

A peer that sends GOAWAY accepts frames until its deadline. In that time this instance tries to reach the destination by
another link. It dials the same address again, where another process of the peer or its successor may answer, and every
other address that leads on. A link is given up when one of these addresses serves in its place, when none of them is
expected to, or at the deadline. The end of our direction shows the peer that nothing more will be sent. Loop-only.

Source: docs/protocol.md, "GOAWAY".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from broker.config.settings import DrainSettings
from broker.forwarding.fib import ForwardingTable
from broker.net.link import Link, LinkState
from broker.net.peer_table import PeerTable
from broker.protocol.frame import GoAway, encode_link
from broker.routing.address import NetworkAddress
from broker.supervision import Timer

LEAVING_MAX = 60.0  # seconds that a peer which drains is read, whatever deadline it names
LEAST_SECONDS = 0.1  # for what is under way to request another link
HOPS_MAX = 20  # next hops that are named
QUIET_SECONDS = 2.0  # without a dialog frame after which a peer counts as moved that has not said so
PROBED_SECONDS = 60.0  # readiness that was not asked for that long is not announced
STUCK_SECONDS = 5.0  # for next hops that are not reached to come back
POLL_FIRST, POLL_MAX = 0.01, 0.1  # seconds between two polls of what remains
LOG_SECONDS = 1.0  # between two lines in the log

log = structlog.get_logger(__name__)


class DrainStage(StrEnum):
    """How far a drain is."""

    SERVING = "serving"
    ANNOUNCED = "announced"  # no longer ready; everything else as before
    LEAVING = "leaving"  # peers move, frames that are held are sent
    LEFT = "left"  # the drain waits for nothing further


@dataclass(frozen=True, slots=True)
class DrainRemainder:
    """
    The rest of a drain: frames that are held, peers that may still send, and databases that are busy.

    Attributes:
        held: Number of frames that are held.
        unserved: Number of those frames that no link accepts now.
        peers: Number of connections whose peers may still send.
        by_hop: Frames held for the next hops with most.
        busy: Databases that have yet to store or acknowledge what arrived.
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
        """Whether all that remains waits for next hops that are not reached."""
        return self.held == self.unserved and not (self.peers or self.busy)

    @property
    def fields(self) -> dict[str, Any]:
        """For a line of the log."""
        return {"held": self.held, "peers": self.peers, "by_hop": self.by_hop, "busy": list(self.busy)}

    def __str__(self) -> str:
        peers = f"{self.peers} peer{'' if self.peers == 1 else 's'} left"
        busy = f", busy: {', '.join(self.busy)}" if self.busy else ""
        return f"{self.held} held, {peers}{busy}"


class Leaver(Protocol):
    """The instance that leaves, as the drain sees it."""

    def on_drain(self) -> None:
        """The drain begins: the instance is no longer ready."""

    async def leave(self, seconds: float) -> None:
        """Accept no new peers, notify all peers, send nothing new; all within so many seconds from now."""

    async def remainder(self) -> DrainRemainder:
        """Return the rest of the drain: held frames, peers that may still send, and busy databases."""


class Drain:
    """
    The drain of one instance.

    Args:
        leaver: The instance that leaves.
        settings_of: Returns the time limits; called when the drain begins.

    Attributes:
        reason: The reason for the drain, "" while the instance serves.
        remainder: The rest of the drain, as of the last poll.
        changes: The number of changes that were reported.
        followers: Called with each change; the process that reports to a service manager is one.
        process: ID of the process that ends after the drain, set by its runner; None if an application continues
            without the instance.
    """

    def __init__(self, leaver: Leaver, settings_of: Callable[[], DrainSettings]) -> None:
        self.stage = DrainStage.SERVING
        self.reason = ""
        self.remainder = DrainRemainder()
        self.changes = 0
        self.followers: list[Callable[[], None]] = []
        self.process: int | None = None
        self._leaver = leaver
        self._settings_of = settings_of
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
        """Whether nothing remained; False before the end."""
        return self.stage is DrainStage.LEFT and self.remainder.is_nothing

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
                return f"draining: {self.remainder}, {math.ceil(self.remaining_s)} s"
            case DrainStage.LEFT:
                return "drained" if self.is_clean else f"not drained: {self.remainder}"

    @property
    def told(self) -> dict[str, Any] | None:
        """For a status; None while it serves."""
        if self.stage is DrainStage.SERVING:
            return None
        state = {"stage": self.stage.value, "reason": self.reason, "sentence": self.sentence}
        return state | self.remainder.fields | {"remaining_s": round(self.remaining_s, 3)}

    def probed(self) -> None:
        """A load balancer asks whether to send anything here, and will ask again."""
        self._probed_at = self._loop.time()

    def begin(self, reason: str) -> None:
        """Leave, for this reason. Nothing happens when it has begun."""
        if self._task is not None:
            return
        self.reason = reason
        self._task = self._loop.create_task(self._run(self._settings_of()), name="drain")

    async def end(self, reason: str) -> None:
        """Wait until it has left; it begins now, for this reason, if it has not begun."""
        self.begin(reason)
        assert self._task is not None
        await self._task

    async def poll(self) -> DrainRemainder:
        """Return the rest of the drain, or, before one begins, what it would have to wait for."""
        if self.stage is not DrainStage.LEFT:
            self.remainder = await self._leaver.remainder()
        return self.remainder

    async def changed(self, since: int, seconds: float) -> None:
        """Wait until more than `since` changes were reported, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.changes <= since:
                    await self._changed.wait()

    async def _run(self, settings: DrainSettings) -> None:
        now = self._loop.time()
        self._until = now + settings.timeout
        is_asked = now - self._probed_at < PROBED_SECONDS
        announce = min(settings.announce, settings.timeout) if is_asked else 0.0
        log.info("instance draining", reason=self.reason, announce_s=announce, timeout_s=settings.timeout)
        self._leaver.on_drain()
        self._go_to(DrainStage.ANNOUNCED)
        try:
            await asyncio.sleep(announce)
            self._go_to(DrainStage.LEAVING)
            async with asyncio.timeout(max(0.0, self.remaining_s)):
                await self._leaver.leave(self.remaining_s)
                await self._wait_until_left()
        except TimeoutError:
            await self.poll()
        finally:
            self._go_to(DrainStage.LEFT)
        if self.is_clean:
            log.info("instance drained", seconds=round(self._loop.time() - now, 3))
        else:
            log.warning("instance not drained", **self.remainder.fields, seconds=round(self._loop.time() - now, 3))

    async def _wait_until_left(self) -> None:
        """Until nothing remains, or what remains has no hope."""
        begun_at = self._loop.time()
        reported, log_at, pause = DrainRemainder(), begun_at, POLL_FIRST
        while not (remainder := await self.poll()).is_nothing:
            now = self._loop.time()
            if remainder.is_stuck and now >= begun_at + STUCK_SECONDS:
                return
            if remainder != reported or now >= log_at:
                self._report()
            if now >= log_at:
                log.info("draining", **remainder.fields, remaining_s=round(self.remaining_s, 1))
                log_at = now + LOG_SECONDS
            reported, pause = remainder, min(POLL_MAX, pause * 1.5)
            await asyncio.sleep(pause)

    def _go_to(self, stage: DrainStage) -> None:
        self.stage = stage
        self._report()

    def _report(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed.clear()
        for follower in self.followers:
            follower()


class OwnDeparture:
    """This instance leaves: what its peers were sent, and what of its work remains; `is_announced` once it leaves."""

    def __init__(self, links: Mapping[int, Link], table: ForwardingTable) -> None:
        self.is_announced = False
        self._links = links
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._until = 0.0
        self._received: dict[Link, tuple[int, float]] = {}  # frames received, and since when there are so many

    def announce(self, *, reason: str, seconds: float) -> None:
        """Send GOAWAY to every peer: this instance leaves in so many seconds; they move, and what is held leaves."""
        self.is_announced = True
        self._reason, self._until = reason, self._loop.time() + seconds
        for link in list(self._links.values()):
            self.announce_to(link)

    def announce_to(self, link: Link) -> None:
        """The same to a peer whose HELLO is complete; nothing while this instance stays."""
        if self.is_announced and link.agreement is not None:
            left_ms = max(0, int((self._until - self._loop.time()) * 1000))
            link.send_control(encode_link(GoAway(reason=self._reason, deadline_ms=left_ms)))

    def remainder(self) -> DrainRemainder:
        """Return the frames that the outboxes hold, and the number of links whose peers may still send."""
        boxes = [outbox for outbox in self._table.all_outboxes() if outbox.held]
        by_hop = Counter[str]()
        for outbox in boxes:
            by_hop[str(outbox.address)] += len(outbox.held)
        unserved = sum(len(outbox.held) for outbox in boxes if outbox.outlet is None)
        return DrainRemainder(by_hop.total(), unserved, self._count_staying(), dict(by_hop.most_common(HOPS_MAX)))

    def _count_staying(self) -> int:
        """How many links have peers that may still send."""
        now = self._loop.time()
        before, self._received = self._received, {}
        staying = 0
        for link in self._links.values():
            if link.state is not LinkState.LOGGED_IN or link.has_peer_finished:
                continue
            count = link.received.total()
            known, since = before.get(link, (count, now))
            self._received[link] = count, since if known == count else now
            staying += now - self._received[link][1] < QUIET_SECONDS
        return staying


@dataclass(slots=True)
class _PeerDeparture:
    """Loop times `least_at` and `until`, the deadline; `hopes` addresses that may serve in place of the link."""

    least_at: float
    until: float
    hopes: set[NetworkAddress] = field(default_factory=set)


class PeerDepartures:
    """
    Links whose peers are leaving: each is used until another leads on.

    Args:
        table: Knows which addresses are being dialled.
        dial: Dials an address, unless that is under way.
        give_up: Called once for each link that is of no further use.
    """

    def __init__(
        self, table: PeerTable, dial: Callable[[NetworkAddress], None], give_up: Callable[[Link], None]
    ) -> None:
        self._table = table
        self._dial = dial
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._departures: dict[Link, _PeerDeparture] = {}
        self._timer = Timer()

    def begin(self, link: Link, seconds: float, addresses: Iterable[NetworkAddress]) -> None:
        """The peer of a link leaves in so many seconds; these addresses may serve in its place."""
        now = self._loop.time()
        departure = self._departures[link] = _PeerDeparture(now + min(seconds, LEAST_SECONDS), now + seconds)
        for address in addresses:
            departure.hopes.add(address)
            self._dial(address)
        self._timer.at(departure.least_at, self.poll)  # for all: the last one that began has its least time last

    def postpone(self, link: Link, seconds: float) -> None:
        """The peer says it again: another deadline."""
        departure = self._departures.get(link)
        if departure is not None:
            departure.until = self._loop.time() + seconds

    def remaining(self, link: Link) -> float:
        """Seconds to the deadline of a link; 0 when it is not here."""
        departure = self._departures.get(link)
        return 0.0 if departure is None else max(0.0, departure.until - self._loop.time())

    def add_hope(self, address: NetworkAddress) -> None:
        """Frames that may have lost their next hop request a link to this one."""
        for departure in self._departures.values():
            departure.hopes.add(address)

    def forget(self, link: Link) -> None:
        """The link has ended."""
        self._departures.pop(link, None)

    def poll(self) -> None:
        """Give up the links of no further use; called when dialling has ended or time has passed."""
        now = self._loop.time()
        for link, departure in list(self._departures.items()):
            is_hoping = any(
                (history := self._table.histories.get(address)) is not None and history.is_dialling
                for address in departure.hopes
            )
            if now >= departure.until or (now >= departure.least_at and not is_hoping):
                self._give_up(link)
                self.forget(link)

    def close(self) -> None:
        """Forget all departures."""
        self._departures.clear()
        self._timer.cancel()


def left_cleanly(outlet: object) -> bool:
    """True if frames that an outlet accepted arrive, although it is closed, because its peer left in good order."""
    return isinstance(outlet, Link) and outlet.left_cleanly
