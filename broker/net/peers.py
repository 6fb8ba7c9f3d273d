"""
Which link serves which address.

An address is served by the link dialled for it, or by any open link whose peer announced that address in its HELLO
(on an endpoint without authentication such an announcement is believed), so a network that lets only one side connect
still carries the answers. Of two links between the same pair of processes opened from both sides, one stays and the
other is drained. An address that somebody wants and nobody serves is dialled, with back-off.

Loop-only. Whatever changes here can change a route's health, so the forwarder is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from broker.forwarding.forwarder import Forwarder
from broker.net.announced import announced
from broker.net.backpressure import Backpressure
from broker.net.dialer import Attempts, connect
from broker.net.link import LINGER_SECONDS, Link, LinkState
from broker.net.listener import render_endpoint
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.wire.connection import Connection, Ended, Event, Leaving, Probed, RejectedBy
from broker.wire.frame import GoAway, Hello, Probe, ProbeReply, Rejected, encode_link
from broker.wire.handshake import Agreement, stays
from broker.wire.layout import NO_GUID

TICK_SECONDS = 1.0  # at most, between two looks at the links; less when heartbeats are short
LEAVING_MAX = 60.0  # seconds that a peer which drains is heard out, whatever deadline it names
DIALS_MAX = 64  # connections coming about at one time: the other descriptors are for those who dial us
ATTEMPTS_MAX = 10_000  # addresses remembered: with ADDRESS 'TRANSPORT' a peer may invent them
PEER_NAMES_MAX = 1000  # whose frames are counted by name; the peers choose their names, so there must be an end
OTHER_PEERS = "other"

log = structlog.get_logger(__name__)

OnRejected = Callable[[Rejected], None]
OnRoom = Callable[[], None]
Prove = Callable[[Probe], ProbeReply]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """
    Shape: seconds for HELLO to be complete, for a connection to come about, and for which a link that finds no room for
    what it brings is not read at most.
    """

    handshake: float
    connect: float
    backpressure: float = 0.25


class Peers:
    """
    The links of this instance and the addresses they serve.

    Shape: `links` all that are not closed, by number; `attempts` what is remembered of addresses dialled; `faults`
    links that ended because the peer broke a rule, by the error's name; `timeouts` in seconds; `backpressure` pauses
    links for the forwarder.
    """

    def __init__(
        self, hello: Hello, timeouts: Timeouts, *, on_rejected: OnRejected, on_room: OnRoom, prove: Prove
    ) -> None:
        self.hello = hello
        self.links: dict[int, Link] = {}
        self.attempts: dict[NetworkAddress, Attempts] = {}
        self.faults: Counter[str] = Counter()
        self.forwarder: Forwarder
        self.backpressure = Backpressure(timeouts.backpressure)
        self._received: dict[str, Counter[int]] = {}  # over closed links, by name of the peer
        self._dialled: dict[int, NetworkAddress] = {}
        self._serves: dict[int, list[NetworkAddress]] = {}  # by link number
        self._servers: dict[NetworkAddress, list[Link]] = {}  # the one dialled for it first
        self._timeouts = timeouts
        self._on_rejected = on_rejected
        self._prove = prove
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialling = asyncio.Semaphore(DIALS_MAX)
        self._stirred = asyncio.Event()  # set when something may have left or ended, for `close`
        self._is_stopping = False

    def start(self, forwarder: Forwarder) -> None:
        """Begin to keep time; the forwarder is the one whose outboxes are served."""
        self.forwarder = forwarder
        self._spawn(self._tick(), "peers tick")

    # --- ports of the forwarder ---

    def want(self, address: NetworkAddress) -> None:
        """Somebody has frames for this address: see that a link comes to serve it."""
        if self._is_stopping:
            return
        if self._serving(address) is not None:
            self._fit(address)
            self._loop.call_soon(self._on_room)  # not here: the caller is in the middle of a pass
            return
        attempts = self.attempts.setdefault(address, Attempts())
        if not attempts.is_under_way:
            attempts.is_under_way = True
            self._spawn(self._dial(address, attempts), f"dial {address}")

    def health_of(self, address: NetworkAddress) -> Health:
        """Whether an address is served, was not tried, or did not answer lately."""
        if self._serving(address) is not None:
            return Health.CONNECTED
        attempts = self.attempts.get(address)
        is_suppressed = attempts is not None and self._loop.time() < attempts.suppressed_until
        return Health.SUPPRESSED if is_suppressed else Health.UNTRIED

    def problem_of(self, address: NetworkAddress) -> str:
        """Why the last attempt to reach an address failed, or its link was lost; empty while nothing is known."""
        attempts = self.attempts.get(address)
        return "" if attempts is None else attempts.problem

    # --- what those who look at it ask ---

    @property
    def known_addresses(self) -> set[NetworkAddress]:
        """Every address that was dialled or is served."""
        return self.attempts.keys() | self._servers.keys()

    def received(self) -> dict[str, Counter[int]]:
        """Dialog frames that came in since the start, by name of the peer and kind; past a bound by "other"."""
        received = {name: counts.copy() for name, counts in self._received.items()}
        for link in self.links.values():
            if link.agreement is not None:
                received.setdefault(self._counted_as(link), Counter()).update(link.received)
        return received

    def _counted_as(self, link: Link) -> str:
        name = link.peer_name
        return name if name in self._received or len(self._received) < PEER_NAMES_MAX else OTHER_PEERS

    # --- links come ---

    def accept(self, sock: socket.socket, address: str) -> None:
        """A peer has connected."""
        if self._is_stopping:
            sock.close()
            return
        self._open(sock, address, dialled=None)

    async def _dial(self, address: NetworkAddress, attempts: Attempts) -> None:
        wait = attempts.suppressed_until - self._loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            if self._serving(address) is None:
                async with self._dialling:
                    sock, where = await connect(address, timeout=self._timeouts.connect)
                self._open(sock, render_endpoint(where), dialled=address)
                return
        except OSError as error:
            self._suppress(address, error.strerror or str(error))
        attempts.is_under_way = False
        self._changed()
        self._fit(address)

    def _open(self, sock: socket.socket, address: str, *, dialled: NetworkAddress | None) -> None:
        connection = Connection(self.hello, now=self._loop.time(), handshake_timeout=self._timeouts.handshake)
        link = Link(sock, address, is_accept=dialled is None, connection=connection, forwarder=self.forwarder)
        self.links[link.number] = link
        if dialled is not None:
            self._dialled[link.number] = dialled
        log.debug("link opened", link=link.number, peer=address, is_accept=link.is_accept)
        try:
            link.start(self)
        except OSError as error:
            link.close(error.strerror or str(error))

    # --- Owner of every link ---

    def on_online(self, link: Link) -> None:
        """HELLO is complete: the link serves what it was dialled for and what its peer announced."""
        agreement = link.agreement
        assert agreement is not None
        dialled = self._dialled.get(link.number)
        log.info("link online", link=link.number, peer=link.address, name=agreement.peer.name, accepted=link.is_accept)
        if agreement.is_self:
            if dialled is not None:
                self.forwarder.found_self({dialled}, self._loop.time())
            link.close("the address leads to this very instance")
            return
        self._received.setdefault(self._counted_as(link), Counter())
        if dialled is not None:
            attempts = self.attempts[dialled]
            attempts.succeeded()
            attempts.is_under_way = False
            self._serve(link, [dialled], first=True)
        self._serve(link, announced(agreement))
        self._arbitrate(link, agreement)
        if self._serves.get(link.number):
            self._changed()

    def on_writable(self, link: Link) -> None:
        """The link takes more: let what waits for it leave, address by address."""
        now = self._loop.time()
        for address in self._serves.get(link.number, ()):
            outbox = self.forwarder.outboxes.get(address)
            if outbox is not None and outbox.outlet is link:
                self.backpressure.drain(outbox, now)
        self.backpressure.look_again()
        self._stirred.set()
        if link.can_send:
            self._on_room()

    def on_event(self, link: Link, event: Event) -> None:
        """What the peer said."""
        if isinstance(event, RejectedBy):
            self._on_rejected(event.rejected)
        elif isinstance(event, Probed):
            link.say(encode_link(self._prove(event.probe)))
        elif isinstance(event, Leaving):
            log.info("peer is draining", link=link.number, peer=link.address, reason=event.goaway.reason)
            self._leave(link, min(event.goaway.deadline_ms / 1000, LEAVING_MAX))
        elif isinstance(event, Ended):
            log.warning("peer ended the link", link=link.number, peer=link.address, reason=event.fatal.text)
            link.close(f"FATAL from the peer: {event.fatal.text}")

    def on_lost(self, link: Link) -> None:
        """The link is of no use: what it served is served by another, or dialled again while frames wait."""
        if link.error is not None:
            self.faults[type(link.error).__name__] += 1
        if not self._is_stopping:
            note = log.warning if link.agreement is None else log.info
            note("link closed", link=link.number, peer=link.address, reason=link.reason)
        dialled = self._dialled.pop(link.number, None)
        if dialled is not None:
            self.attempts[dialled].is_under_way = False
            self._suppress(dialled, link.reason)
        self._withdraw(link, dialled)

    def on_closed(self, link: Link) -> None:
        """Nothing is left of the link but what it counted."""
        del self.links[link.number]
        if link.received:
            self._received[self._counted_as(link)].update(link.received)
        self._stirred.set()

    # --- who serves what ---

    def _serving(self, address: NetworkAddress) -> Link | None:
        for link in self._servers.get(address, ()):
            if link.state is LinkState.LOGGED_IN:
                return link
        return None

    def _serve(self, link: Link, addresses: Iterable[NetworkAddress], *, first: bool = False) -> None:
        """From now on the link serves these addresses; `first` for the one it was dialled for."""
        serves = self._serves.setdefault(link.number, [])
        for address in addresses:
            if address not in serves:
                serves.append(address)
                self._servers.setdefault(address, []).insert(0 if first else sys.maxsize, link)
                self._fit(address)

    def _withdraw(self, link: Link, dialled: NetworkAddress | None) -> None:
        """The link serves nothing any more; `dialled` is the address it was opened for, served or not."""
        addresses = self._serves.pop(link.number, [])
        for address in addresses:
            self._servers[address].remove(link)
            if not self._servers[address]:
                del self._servers[address]  # peers announce what they like, so nothing of it may stay
        if dialled is not None and dialled not in addresses:
            addresses.append(dialled)
        for address in addresses:
            self._fit(address)
        if addresses:  # a stranger that comes and goes costs nobody a remembered way
            self._changed()

    def _fit(self, address: NetworkAddress) -> None:
        """Give the outbox of an address the link that serves it now; dial when there is none and frames wait."""
        outbox = self.forwarder.outboxes.get(address)
        if outbox is None:
            return
        link = self._serving(address)
        if outbox.outlet is not link:
            outbox.outlet = link
            outbox.drain(self._loop.time())
        if link is None and outbox.held:
            self.want(address)

    def _suppress(self, address: NetworkAddress, problem: str) -> None:
        wait = self.attempts[address].failed(problem, self._loop.time())
        log.info("address suppressed", address=str(address), reason=problem, seconds=round(wait, 3))

    def _arbitrate(self, link: Link, agreement: Agreement) -> None:
        """One connection for each pair of processes: the loser is drained, its addresses move to the survivor."""
        if agreement.peer.arbitration == NO_GUID:
            return
        for other in list(self.links.values()):
            if other is link or other.state is not LinkState.LOGGED_IN or other.agreement is None:
                continue
            if other.agreement.peer.arbitration != agreement.peer.arbitration or other.is_accept == link.is_accept:
                continue
            opened_here = not link.is_accept
            link_stays = stays(self.hello.arbitration, agreement.peer.arbitration, opened_here=opened_here)
            loser, survivor = (other, link) if link_stays else (link, other)
            log.info("link lost arbitration", link=loser.number, peer=loser.address, survivor=survivor.number)
            loser.drain()
            dialled = self._dialled.pop(loser.number, None)
            self._serve(survivor, [dialled] if dialled is not None else [], first=True)
            self._withdraw(loser, dialled)
            return

    def _leave(self, link: Link, seconds: float) -> None:
        """The peer drains: hear it out, use another address while there is one, and come back later."""
        link.hear_out(seconds + self._timeouts.handshake)
        dialled = self._dialled.pop(link.number, None)
        if dialled is not None:
            self._suppress(dialled, "the peer is draining")
        self._withdraw(link, dialled)

    def _changed(self) -> None:
        """Which addresses are served has changed: frames and dialogs look for their way again."""
        self.forwarder.changed()
        self.forwarder.mend(self._loop.time(), lambda address: bool(self.problem_of(address)))
        self.backpressure.look_again()
        self._on_room()

    # --- time and the end ---

    async def _tick(self) -> None:
        pause = min(TICK_SECONDS, self.hello.heartbeat_ms / 2000, self._timeouts.handshake / 2)
        while True:
            due = self._loop.time() + pause
            await asyncio.sleep(pause)
            now = self._loop.time()
            if now - due < TICK_SECONDS:  # else we were held up, and what peers said meanwhile has yet to be read
                for link in list(self.links.values()):
                    link.tick(now)
            self.forwarder.expire(now)
            self.backpressure.look_again()
            self._stirred.set()
            if len(self.attempts) > ATTEMPTS_MAX:
                self.attempts = {
                    address: attempts
                    for address, attempts in self.attempts.items()
                    if attempts.is_under_way or now < attempts.suppressed_until or self._serving(address) is not None
                }

    async def close(self, *, reason: str, seconds: float) -> None:
        """Tell every peer, let what is held leave for so many seconds, then close all links."""
        self._is_stopping = True
        goaway = encode_link(GoAway(reason=reason, deadline_ms=int(seconds * 1000)))
        for link in list(self.links.values()):
            if link.agreement is not None:
                link.say(goaway)
        outboxes = self.forwarder.outboxes
        await self._until(lambda: not any(box.held and box.outlet is not None for box in outboxes.values()), seconds)
        for link in list(self.links.values()):
            link.drain()
        await self._until(
            lambda: all(link.state is not LinkState.DRAINING for link in self.links.values()),
            min(seconds, LINGER_SECONDS),
        )
        self.backpressure.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self.links.values()):
            link.close(reason)
        self.forwarder.abandon()

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until it is so, for so many seconds at most; looked at whenever a link stirs, and at every tick."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._stirred.clear()
                    await self._stirred.wait()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", task=task.get_name(), exc_info=task.exception())
