"""
Which link serves which address.

An address is served by the link dialled for it, or by any open link whose peer announced that address in its HELLO, so
a network that lets only one side connect still carries the answers. Where peers prove who they are, an announcement
counts only if the certificate covers the host, and if no other principal has answered when the address was dialled. Of
two links between the same pair of processes opened from both sides, one stays and the other is drained. An address that
somebody wants and nobody serves is dialled, with back-off.

Loop-only. Whatever changes here can change a route's health, so the forwarder is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import structlog

from broker.errors import ConnectDeniedError
from broker.forwarding.entry import Outlet
from broker.forwarding.forwarder import Forwarder
from broker.net.admission import Admission
from broker.net.backpressure import Backpressure
from broker.net.dialer import Dialer
from broker.net.drain import LEAVING_MAX, Left, OwnDeparture, PeerDepartures
from broker.net.handshake import Handshaker, Handshakes, Opening
from broker.net.link import LINGER_SECONDS, Link, LinkState
from broker.net.listener import room_for_connections
from broker.net.peer_table import (
    Addresses,
    DialHistory,
    Nobody,
    Outlets,
    PeerFrameCounts,
    Processes,
    Serving,
    Watcher,
    announced,
)
from broker.net.quotas import NO_LIMITS, PeerLimits, Permissions, Timeouts
from broker.net.tls import NO_SECURITY, Security
from broker.protocol.frame import Hello, Probe, ProbeReply, Rejected, encode_link
from broker.protocol.layout import ADDRESSES_MAX, NAME_MAX_BYTES
from broker.protocol.link_state import (
    Agreement,
    Ended,
    Event,
    LinkStateMachine,
    PeerLeaving,
    ProbeAnswered,
    Probed,
    RejectedBy,
    stays,
)
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.security.grants import Grants
from broker.supervision import SupervisedTask, Supervision

# --- askers ---
# Who asked for the principal of what, so that a change of role here is told to whoever has to know it.
#
# Every PROBE is answered at once. The peer that asked is told again, with the id of its last PROBE, when the role of
# that
# broker instance changes here: it need not wait for the next time it asks. A link that is gone is told nothing; its
# peer
# asks again. Loop-only.


ASKED_MAX = 64  # broker instances remembered of one link, the latest; some 50 KB

Prove = Callable[[Probe], ProbeReply]
"""What this instance is for a broker instance now; must not fail."""


class ProbeSubscriber(Protocol):
    """Whoever asks: a link."""

    def send_control(self, frame: bytes) -> None:
        """Send a link frame; shed while the peer does not read."""


class Askers:
    """Shape: `answered` PROBE frames answered since the start."""

    def __init__(self, prove: Prove) -> None:
        self.answered = 0
        self._prove = prove
        self._probes: dict[ProbeSubscriber, dict[bytes, Probe]] = {}  # by broker instance, the latest at the end

    def answer(self, asker: ProbeSubscriber, probe: Probe) -> None:
        """A peer asks: say what holds now, and remember whom to tell when it changes."""
        self.answered += 1
        probes = self._probes.setdefault(asker, {})
        probes.pop(probe.broker_instance, None)
        probes[probe.broker_instance] = msgspec.structs.replace(probe, service=probe.service[:NAME_MAX_BYTES])
        if len(probes) > ASKED_MAX:
            del probes[next(iter(probes))]
        asker.send_control(encode_link(self._prove(probe)))

    def announce(self, broker_instance: bytes) -> None:
        """What this instance is for a broker instance has changed: everybody who asked is answered anew."""
        for asker, probes in list(self._probes.items()):
            probe = probes.get(broker_instance)
            if probe is not None:
                asker.send_control(encode_link(self._prove(probe)))

    def forget(self, asker: ProbeSubscriber) -> None:
        """The link is gone."""
        self._probes.pop(asker, None)


# --- housekeeping ---
# What the forwarder leaves to the loop: another slice of its work in a later turn, and links that failed in a pass.
#
# Loop-only.


REPORT_SECONDS = 1.0  # between two traces of the same kind of failure; all are counted

log = structlog.get_logger(__name__)


class DeferredWork:
    """Shape: `failures` of what must not fail, since the start."""

    def __init__(self) -> None:
        self.failures = 0
        self._forwarder: Forwarder
        self._after: Callable[[], None]
        self._turn: asyncio.Handle | None = None
        self._reported: dict[type[Exception], float] = {}
        self._loop = asyncio.get_running_loop()

    def start(self, forwarder: Forwarder, after: Callable[[], None]) -> None:
        """From now on this forwarder has its turns; `after` is called behind each, when there may be more room."""
        self._forwarder = forwarder
        self._after = after

    def again(self) -> None:
        """Give the forwarder a turn, not in this call."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._work)

    def report(self, outlet: Outlet | None, error: Exception) -> None:
        """Something failed in the middle of a pass: say so, and close the link, if it was one, when that is over."""
        self.failures += 1
        now = self._loop.time()
        if now - self._reported.get(type(error), float("-inf")) >= REPORT_SECONDS:
            self._reported[type(error)] = now
            log.error("pass went on without", link=getattr(outlet, "number", None), exc_info=error)
        if isinstance(outlet, Link):
            self._loop.call_soon(outlet.close, f"could not be written to: {type(error).__name__}: {error}")

    def _work(self) -> None:
        self._turn = None
        self._forwarder.work(self._loop.time())
        self._after()


# --- pace ---
# So much in one turn of the loop: when links end or fall due in crowds, everybody else has their turn in between.
#
# Loop-only.


ENDS = 16  # links that end in one turn; each takes some 50 us, most of it to tell of it
RENEW_SECONDS = 0.05  # after which the loop is asked again to tell of a socket: see `Transport.renew_reader`
RENEWALS = 512  # in one turn
LOOK_SECONDS = 0.001  # of one turn, to look at links one after the other

OnFailed = Callable[[Link, Exception], None]


class LoopFairness:
    """
    Args:
        on_failed: Told of a bug in what is done for one link; the others have their turn all the same.
    """

    def __init__(self, on_failed: OnFailed) -> None:
        self._on_failed = on_failed
        self._ended: deque[Link] = deque()
        self._done = 0  # in this turn
        self._turn: asyncio.Handle | None = None
        self._heard: deque[Link] = deque()
        self._renewal: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def wind_up(self, link: Link) -> None:
        """End a link whose peer is gone: now, or in one of the next turns when many have ended in this one."""
        self._ended.append(link)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._next)
        if self._done < ENDS and len(self._ended) == 1:
            self._done += 1
            self._end()

    async def tick(self, links: Iterable[Link]) -> None:
        """It is time for all these links, in as many turns as that takes."""
        await self.visit(links, _tick)

    async def visit(self, links: Iterable[Link], look: Callable[[Link], None]) -> None:
        """Look at all these links, in as many turns as that takes."""
        due = time.monotonic() + LOOK_SECONDS
        for link in links:
            try:
                look(link)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                self._on_failed(link, error)
            if time.monotonic() >= due:
                await asyncio.sleep(0)
                due = time.monotonic() + LOOK_SECONDS

    def renew_soon(self, link: Link) -> None:
        """A link was read: see soon that the loop will tell of more."""
        self._heard.append(link)
        if self._renewal is None:
            self._renewal = self._loop.call_later(RENEW_SECONDS, self._renew)

    def close(self) -> None:
        """Whoever has ended is closed by somebody else."""
        self._ended.clear()
        if self._renewal is not None:
            self._renewal.cancel()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _next(self) -> None:
        """Another turn."""
        self._turn = None
        self._done = min(len(self._ended), ENDS)
        if self._done:
            self._turn = self._loop.call_soon(self._next)
        for _ in range(self._done):
            self._end()

    def _end(self) -> None:
        link = self._ended.popleft()
        try:
            link.close_after_eof()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            self._on_failed(link, error)

    def _renew(self) -> None:
        for _ in range(min(len(self._heard), RENEWALS)):
            link = self._heard.popleft()
            try:
                link.rearm_reader()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                self._on_failed(link, error)
        self._renewal = self._loop.call_soon(self._renew) if self._heard else None


def _tick(link: Link) -> None:
    if link.state is not LinkState.CLOSED:
        link.tick(asyncio.get_running_loop().time())


# --- stirred ---
# That something may have left or ended, for whoever waits until enough has. Loop-only.


class Stirred:
    """Set whenever a link stirs, and at every tick."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Look again, whoever waits."""
        self._event.set()

    async def until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until it is so, for so many seconds at most; looked at whenever something has stirred."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._event.clear()
                    await self._event.wait()


TICK_SECONDS = 1.0  # at most, between two looks at the links; less when heartbeats are short
OWN_SECONDS = 60.0  # an address that was found to lead to this instance is dialled again after this time
OWN_LOST_SECONDS = 75.0  # and is forgotten after this one, unless it leads here still
NOT_OURS = "another instance has our identity"


OnRejected = Callable[[Link, Rejected], None]
OnRoom = Callable[[], None]


class Peers:
    """
    The links of this instance and the addresses they serve.

    Shape: `links` all that are not closed, by number; `faults` links that ended because the peer broke a rule, by the
    error's name; `timeouts` in seconds; `backpressure` pauses links for the forwarder; `admission` who may have one.
    """

    def __init__(
        self,
        hello: Hello,
        timeouts: Timeouts,
        *,
        on_rejected: OnRejected,
        on_room: OnRoom,
        prove: Prove,
        security: Security = NO_SECURITY,
        limits: PeerLimits = NO_LIMITS,
        supervision: Supervision | None = None,
    ) -> None:
        self.hello = hello
        self.links: dict[int, Link] = {}
        self.faults: Counter[str] = Counter()
        self.forwarder: Forwarder
        self.watcher: Watcher = Nobody()
        self.backpressure = Backpressure(timeouts.backpressure)
        self.permissions = Permissions()
        self.admission = Admission(limits, room_for_connections(0 if security.server is None else limits.handshakes))
        opened, handshakes = partial(self._open, dialled=None), Handshakes(limits.handshakes, self.admission.is_known)
        self.entrance = Handshaker(security, timeouts.handshake, self.faults, opened, handshakes)
        self._heard = PeerFrameCounts()
        self._askers = Askers(prove)
        self._dialled: dict[int, NetworkAddress] = {}
        self._own: dict[NetworkAddress, float] = {}  # addresses that were found to lead here, and when
        self._addresses = Addresses()
        self._servers = self._addresses.servers
        self._outlets = Outlets(self._servers, want=self.want, on_room=on_room)
        self._serving = Serving(self._addresses, self._outlets, lambda: self.watcher)
        self._processes = Processes()
        self._pace = LoopFairness(self.on_bug)
        self.timeouts = timeouts
        self._on_rejected = on_rejected
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._supervision = supervision or Supervision()
        self._ticking: SupervisedTask | None = None
        self.dialling = Dialer(self.entrance, self._addresses, timeouts.connect, self._open, self._on_unreached)
        self._stirred = Stirred()
        self._departures = PeerDepartures(self._addresses, self.dialling.want, self._part)
        self.farewell = OwnDeparture()
        self._is_closing = False

    def serve(self, forwarder: Forwarder) -> None:
        """The outboxes of this forwarder, which may want a link from now on."""
        self.forwarder = self._outlets.forwarder = forwarder
        self.dialling.is_invented = forwarder.table.is_invented

    def start(self) -> None:
        """Begin to keep time."""
        self._ticking = self._supervision.keep("peers tick", self._tick)

    # --- ports of the forwarder ---

    def want(self, address: NetworkAddress) -> None:
        """Somebody has frames for this address: see that a link comes to serve it."""
        if self._is_closing:
            return
        if self._servers.serving(address) is not None:
            self._outlets.fit(address)
            self._loop.call_soon(self._on_room)  # not here: the caller is in the middle of a pass
            return
        self._departures.wanted(address)
        self.dialling.want(address)

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        """Whether an address is served, was not tried, or did not answer lately."""
        return self._addresses.health_of(address)

    def problem_of(self, address: NetworkAddress) -> str:
        """Why the last attempt to reach an address failed, or its link was lost; empty while nothing is known."""
        return self._addresses.problem_of(address)

    def ask(self, address: NetworkAddress, probe: bytes) -> Link | None:
        """Say PROBE by the link that serves an address; None where it has to be dialled first, and nothing is said."""
        link = self._servers.serving(address)
        if link is not None:
            link.send_control(probe)
        elif not self._is_closing:
            self.dialling.want(address, is_probe=True)
        return link

    def served_by(self, link: Link) -> list[NetworkAddress]:
        """The addresses whose frames leave by this link."""
        return [address for address in self._servers.addresses_of(link) if self._servers.serving(address) is link]

    # --- what those who look at it ask ---

    @property
    def attempts(self) -> Mapping[NetworkAddress, DialHistory]:
        """What is remembered of addresses dialled."""
        return self._addresses.attempts

    @property
    def known_addresses(self) -> set[NetworkAddress]:
        """Every address that was dialled or is served."""
        return self._addresses.known

    def received(self) -> dict[str, dict[int, int]]:
        """Dialog frames that came in since the start, by name of the peer and kind; past a bound by "other"."""
        return self._heard.counts(self.links.values())

    def announce(self, broker_instance: bytes) -> None:
        """What this instance is for a broker instance has changed: tell every peer that asked for its principal."""
        self._askers.announce(broker_instance)
        self.watcher.on_role(broker_instance)

    # --- links come ---

    def accept(self, sock: socket.socket, address: str) -> None:
        """A peer has connected."""
        if self._is_closing:
            sock.close()
            return
        self.entrance.accept(sock, address)

    def _on_unreached(self, address: NetworkAddress) -> None:
        self._changed()
        self._serving.look(address)
        self._departures.look()

    def _open(self, opening: Opening, dialled: NetworkAddress | None) -> None:
        connection = LinkStateMachine(self.hello, now=opening.begun_at, handshake_timeout=self.timeouts.handshake)
        link = Link(
            *opening.ends, is_accept=dialled is None, connection=connection, forwarder=self.forwarder, handler=self
        )
        self.links[link.number] = link
        if dialled is not None:
            self._dialled[link.number] = dialled
        log.debug("link opened", link=link.number, peer=link.address, is_accept=link.is_accept)
        refusal = self.admission.enter(link, self.forwarder.pool)
        denied = self._judge(link)
        own, identity = self.entrance.security.own, link.transport.identity
        if own is not None and identity is not None and identity.fingerprint == own.fingerprint:
            denied = None  # it may be this instance, dialled by an address of its own: judged again after HELLO
        try:
            link.start(denied)
            if refusal:
                self.admission.turn_away(link, refusal)
        except OSError as error:
            link.close(error.strerror or str(error))

    def _judge(self, link: Link) -> ConnectDeniedError | None:
        """Give a link the permit of its peer; why that may not connect, if it may not."""
        link.permit = self.permissions.permit_of(link.transport.identity)
        return self.permissions.refuse(link.permit)

    def apply_grants(self, grants: Grants) -> None:
        """Use these grants from now on: links whose peers may not connect any more are closed."""
        if self.permissions.apply(grants):
            for link in list(self.links.values()):
                denied = self._judge(link)
                if denied is not None:
                    link.fail(denied)

    # --- Owner of every link ---

    def on_online(self, link: Link) -> None:
        """HELLO is complete: the link serves what it was dialled for and what its peer announced."""
        agreement = link.agreement
        assert agreement is not None
        dialled = self._dialled.get(link.number)
        is_own = agreement.is_self and self._is_own(link)
        if dialled is not None and dialled in self._own and not is_own:
            self._forget_own(dialled)
        if agreement.is_self:
            self._turn_away_self(link, dialled, is_own=is_own)
            return
        log.info("link online", link=link.number, peer=link.address, name=agreement.peer.name, accepted=link.is_accept)
        denied = self._judge(link)
        if denied is not None:
            link.fail(denied)
            return
        self._heard.greet(link)
        self.admission.greeted(link)
        identity = link.transport.identity
        if dialled is not None:
            attempts = self.attempts[dialled]
            attempts.succeeded()
            attempts.is_under_way = False
            if identity is not None:
                attempts.principal = identity.principal_name
                self._servers.expel(dialled, attempts.principal)
        is_authenticating = self.entrance.security.is_authenticating
        believed = announced(agreement, identity, is_authenticating=is_authenticating)
        if identity is not None:  # once an address was dialled, only the principal that answered there announces it
            known = ("", identity.principal_name)
            believed = frozenset(one for one in believed if self._addresses.answered_by(one) in known)
        if len(agreement.peer.addresses) > ADDRESSES_MAX:
            log.warning("too many addresses announced", peer=link.address, name=link.peer_name, kept=len(believed))
        is_changed = self._serving.begin(link, dialled, believed)
        is_changed |= self._arbitrate(link, agreement)
        if is_changed:
            self._changed()
        self.dialling.verify(believed - self.forwarder.routing_context.own)
        self.farewell.greet(link)
        self._departures.look()

    def on_writable(self, link: Link) -> None:
        """The link takes more: let what waits for it leave, address by address."""
        self._outlets.drain(link)
        self.backpressure.look_again()
        self._stirred.set()
        if link.can_send:
            self._on_room()

    def on_first_read(self, link: Link) -> None:
        """Something was read: see soon that the loop will tell of more."""
        self._pace.renew_soon(link)

    def on_eof(self, link: Link) -> None:
        """Nothing more comes through a link; what is for a peer that has moved away from here still leaves by it."""
        if self.farewell.is_said and link.has_peer_finished and link.state is LinkState.LOGGED_IN:
            self._stirred.set()
        else:
            self._pace.wind_up(link)

    def on_bug(self, link: Link, error: Exception) -> None:
        """A bug: it is told, and the link is closed, in a turn of its own."""
        log.error("link failed", link=link.number, peer=link.address, exc_info=error)
        self._loop.call_soon(link.close, f"a bug of this program: {type(error).__name__}: {error}")

    def on_event(self, link: Link, event: Event) -> None:
        """What the peer said."""
        if isinstance(event, RejectedBy):
            self._on_rejected(link, event.rejected)
            self.watcher.on_rejected(link, event.rejected)
        elif isinstance(event, ProbeAnswered):
            self.watcher.on_answered(link, event.reply)
        elif isinstance(event, Probed):
            self._askers.answer(link, event.probe)
        elif isinstance(event, PeerLeaving):
            self._leave(link, min(event.goaway.deadline_ms / 1000, LEAVING_MAX), event.goaway.reason)
        elif isinstance(event, Ended):
            log.warning("peer ended the link", link=link.number, peer=link.address, reason=event.fatal.text)
            link.close(f"FATAL from the peer: {event.fatal.text}")

    def on_lost(self, link: Link) -> None:
        """The link is of no use: what it served is served by another, or dialled again while frames wait."""
        if link.error is not None:
            self.faults[type(link.error).__name__] += 1
        is_self = link.agreement is not None and link.agreement.is_self  # each minute, and the address is logged
        if not self._is_closing and not is_self:
            note = self.entrance.strangers.warning if link.agreement is None else log.info
            note("link closed", link=link.number, peer=link.address, reason=link.reason)
        self._processes.remove(link)
        self._departures.forget(link)
        dialled = self._dialled.pop(link.number, None)
        self.dialling.lost(link, dialled)
        if self._serving.end(link, dialled):
            self._changed()

    def on_closed(self, link: Link) -> None:
        """Nothing is left of the link but what it counted."""
        del self.links[link.number]
        self.admission.leave(link, self.forwarder.pool)
        self._heard.close(link)
        self._askers.forget(link)
        self._stirred.set()

    # --- addresses that lead to this instance ---

    def _is_own(self, link: Link) -> bool:
        """
        Whether a peer that claims to be this instance is.

        A HELLO repeats what any peer was sent, so certificates decide where peers show them. Elsewhere the id of this
        process is the best there is: it tells a copy of the state directory, which has the same `instance`.
        """
        security, identity, agreement = self.entrance.security, link.transport.identity, link.agreement
        assert agreement is not None
        if security.is_authenticating:
            own = security.own
            return own is not None and identity is not None and identity.fingerprint == own.fingerprint
        return agreement.peer.arbitration == self.hello.arbitration

    def _turn_away_self(self, link: Link, dialled: NetworkAddress | None, *, is_own: bool) -> None:
        """Close a link whose peer says that it is this instance, and note the address if it is."""
        if not is_own:
            address, who = "" if dialled is None else str(dialled), link.peer_id
            if dialled is None or self.problem_of(dialled) != NOT_OURS:
                self.entrance.strangers.warning(
                    "another instance has our identity", address=address, peer=link.address, principal=who
                )
            link.close(NOT_OURS)
            return
        if dialled is not None:
            is_known, now = dialled in self._own, self._loop.time()
            self._own[dialled] = now
            if is_known:  # nothing has changed, so nobody is told
                del self._dialled[link.number]
                self.attempts[dialled].is_under_way = False
            else:
                self.forwarder.add_own_addresses({dialled}, now)
        link.close("the address leads to this very instance")

    def _look_at_own(self, now: float) -> None:
        """Dial each address that leads here again after a minute, and forget those that do so no more."""
        for address, found_at in list(self._own.items()):
            if now - found_at >= OWN_LOST_SECONDS:
                self._forget_own(address)
            elif now - found_at >= OWN_SECONDS and address in self.dialling.named:
                self.dialling.want(address)

    def _forget_own(self, address: NetworkAddress) -> None:
        del self._own[address]
        if str(address) not in self.hello.addresses:  # else it is ours by configuration
            self.forwarder.add_own_addresses(set(), self._loop.time(), address)
            self._changed()

    # --- who serves what ---

    def _arbitrate(self, link: Link, agreement: Agreement) -> bool:
        """One connection for each pair of processes: the loser drains, the other serves; whether that matters."""
        other = self._processes.rival_of(link)
        self._processes.add(link)
        if other is None:
            return False
        link_stays = stays(self.hello.arbitration, agreement.peer.arbitration, opened_here=not link.is_accept)
        loser, survivor = (other, link) if link_stays else (link, other)
        log.info("link lost arbitration", link=loser.number, peer=loser.address, survivor=survivor.number)
        loser.drain()
        dialled = self._dialled.pop(loser.number, None)
        is_changed = self._serving.begin(survivor, dialled)
        return self._serving.end(loser, dialled) or is_changed

    def _leave(self, link: Link, seconds: float, reason: str) -> None:
        """The peer drains: the link is used until another one leads on, which is looked for."""
        if link.is_peer_draining or link.state is not LinkState.LOGGED_IN:  # it may be said again and again
            self._departures.postpone(link, seconds)
            return
        log.info("peer is draining", link=link.number, peer=link.address, reason=reason, seconds=seconds)
        link.is_peer_draining = True
        self._dialled.pop(link.number, None)
        addresses = list(self._servers.addresses_of(link))
        for address in addresses:
            self._serving.look(address, "the peer is draining")
        self._departures.begin(link, seconds, self._outlets.replacing(addresses) if not self.farewell.is_said else ())
        if self._serving.is_missed(addresses):
            self._changed()

    def _part(self, link: Link) -> None:
        """Nothing more is sent to a peer that drains; it is heard until it closes."""
        log.info("moved away", link=link.number, peer=link.address)
        link.drain(self._departures.remaining(link) + self.timeouts.handshake)
        if self._serving.end(link, None):
            self._changed()

    def _changed(self) -> None:
        """Which addresses are served has changed: frames and dialogs look for their way again."""
        self._addresses.forget_who_asked()
        self.forwarder.forget_decisions()
        self.forwarder.reroute_failed(self._loop.time(), lambda address: bool(self.problem_of(address)))
        self.backpressure.look_again()
        self._on_room()

    # --- time and the end ---

    async def _tick(self) -> None:
        while True:
            pause = min(TICK_SECONDS, self.hello.heartbeat_ms / 2000, self.timeouts.handshake / 2)
            due = self._loop.time() + pause
            await asyncio.sleep(pause)
            now = self._loop.time()
            if now - due < TICK_SECONDS:  # else we were held up, and what peers said meanwhile has yet to be read
                await self._pace.tick(list(self.links.values()))
            now = self._loop.time()
            self.forwarder.expire(now)
            self.backpressure.look_again()
            self._departures.look()
            self._stirred.set()
            if not self.farewell.is_said:
                self._look_at_own(now)
                self.dialling.look(now, self.forwarder.routing_context.own)
            self._addresses.forget_old(now)
            self.admission.meters.prune(now)

    def leave(self, *, reason: str, seconds: float) -> None:
        """Tell every peer that this instance leaves in so many seconds; they move, and what is held leaves."""
        self.farewell.say(list(self.links.values()), reason=reason, seconds=seconds)

    def left(self) -> Left:
        """What has not left yet."""
        return self.farewell.left(self.links.values(), self.forwarder.table.all_outboxes())

    async def close(self, *, reason: str, seconds: float) -> None:
        """Tell every peer, unless `leave` has, let what is held leave for so many seconds, then close all links."""
        self._is_closing = True
        if not self.farewell.is_said:
            self.leave(reason=reason, seconds=seconds)
        await self._stirred.until(lambda: not self._outlets.is_draining, seconds)
        for link in list(self.links.values()):
            link.drain()
        await self._stirred.until(
            lambda: all(link.state is not LinkState.DRAINING for link in self.links.values()),
            min(seconds, LINGER_SECONDS),
        )
        self.backpressure.close()
        self._departures.close()
        self._pace.close()
        await self.entrance.close()
        await self.dialling.close()
        if self._ticking is not None:
            await self._ticking.stop()
        for link in list(self.links.values()):
            link.close(reason)
        self.forwarder.drop_all(self._loop.time())


# --- retuning ---
# Other settings for links: what new connections begin with, and what holds at once for all.
#
# What the two sides of a connection have agreed on (largest frame, heartbeat, addresses) stays as it is until it is
# made
# anew; rates, shares of the pool, pauses and numbers of connections hold for those that are there as well. Nobody is
# closed for any of it. Loop-only.


@dataclass(frozen=True, slots=True)
class Tuning:
    """Shape: `max_frame` bytes, `heartbeat_ms` and `addresses` as each peer is told when it connects."""

    max_frame: int
    heartbeat_ms: int
    addresses: tuple[str, ...]
    timeouts: Timeouts
    limits: PeerLimits


def retune(peers: Peers, tuning: Tuning, security: Security) -> None:
    """Links have these settings from now on, beside what is brought to TLS."""
    timeouts, limits = tuning.timeouts, tuning.limits
    peers.hello = msgspec.structs.replace(
        peers.hello, max_frame=tuning.max_frame, heartbeat_ms=tuning.heartbeat_ms, addresses=tuning.addresses
    )
    peers.timeouts = timeouts
    peers.entrance.timeout = timeouts.handshake
    peers.dialling.seconds = timeouts.connect
    peers.backpressure.pause_for(timeouts.backpressure)
    peers.entrance.handshakes.most = limits.handshakes
    shaking = 0 if security.server is None else limits.handshakes
    peers.admission.change(limits, room_for_connections(shaking), peers.forwarder.pool)


def largest_frame(links: Iterable[Link], told: int) -> int:
    """The largest frame that may come: what new peers are told, or any that is connected was, in bytes."""
    return max([told, *(link.connection.max_frame for link in links)])


def narrow(links: Iterable[Link], largest: int) -> None:
    """Frames of up to so many bytes may be for these links; whose peer takes less has them looked at one by one."""
    for link in links:
        if link.agreement is not None:
            link.is_narrow = link.max_frame < largest
