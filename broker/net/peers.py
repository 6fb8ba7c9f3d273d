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
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from broker.forwarding.forwarder import Forwarder
from broker.net.addresses import Addresses
from broker.net.admission import Admission
from broker.net.announced import announced
from broker.net.askers import Askers, Prove
from broker.net.backpressure import Backpressure
from broker.net.departures import LEAVING_MAX, PeerDepartures
from broker.net.descriptors import room_for_connections
from broker.net.dial_history import DialHistory
from broker.net.dialling import Dialer
from broker.net.entrance import Handshaker, Opening
from broker.net.farewell import Left, OwnDeparture
from broker.net.handshakes import Handshakes
from broker.net.heard import PeerFrameCounts
from broker.net.limits import NO_LIMITS, PeerLimits, Timeouts
from broker.net.link import LINGER_SECONDS, Link
from broker.net.link_state import LinkState
from broker.net.outlets import Outlets
from broker.net.pace import LoopFairness
from broker.net.permissions import Permissions
from broker.net.principal import peer_of
from broker.net.processes import Processes
from broker.net.serving import Serving
from broker.net.stirred import Stirred
from broker.net.tls import NO_SECURITY, Security
from broker.net.watcher import Nobody, Watcher
from broker.protocol.frame import Hello, Rejected
from broker.protocol.layout import ADDRESSES_MAX
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
from broker.supervision import SupervisedTask, Supervision

TICK_SECONDS = 1.0  # at most, between two looks at the links; less when heartbeats are short
OWN_SECONDS = 60.0  # an address that was found to lead to this instance is dialled again after this time
OWN_LOST_SECONDS = 75.0  # and is forgotten after this one, unless it leads here still
NOT_OURS = "another instance has our identity"

log = structlog.get_logger(__name__)

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
        self._pace = LoopFairness(self.on_failed)
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
        self.dialling.is_invented = forwarder.is_invented

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
            link.say(probe)
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
        link = Link(*opening.ends, is_accept=dialled is None, connection=connection, forwarder=self.forwarder)
        self.links[link.number] = link
        if dialled is not None:
            self._dialled[link.number] = dialled
        log.debug("link opened", link=link.number, peer=link.address, is_accept=link.is_accept)
        refusal = self.admission.enter(link, self.forwarder.pool)
        denied = self.permissions.admit_first(link, self.entrance.security.own)
        try:
            link.start(self, denied)
            if refusal:
                self.admission.turn_away(link, refusal)
        except OSError as error:
            link.close(error.strerror or str(error))

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
        denied = self.permissions.admit(link)
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
        self.dialling.verify(believed - self.forwarder.here.own)
        self.farewell.greet(link)
        self._departures.look()

    def on_writable(self, link: Link) -> None:
        """The link takes more: let what waits for it leave, address by address."""
        self._outlets.drain(link)
        self.backpressure.look_again()
        self._stirred.set()
        if link.can_send:
            self._on_room()

    def on_heard(self, link: Link) -> None:
        """Something was read: see soon that the loop will tell of more."""
        self._pace.renew_soon(link)

    def on_ended(self, link: Link) -> None:
        """Nothing more comes through a link; what is for a peer that has moved away from here still leaves by it."""
        if self.farewell.is_said and link.has_moved and link.state is LinkState.LOGGED_IN:
            self._stirred.set()
        else:
            self._pace.wind_up(link)

    def on_failed(self, link: Link, error: Exception) -> None:
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
            address, who = "" if dialled is None else str(dialled), peer_of(link)
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
                self.forwarder.found_self({dialled}, now)
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
            self.forwarder.found_self(set(), self._loop.time(), address)
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
        if link.is_leaving or link.state is not LinkState.LOGGED_IN:  # it may be said again and again
            self._departures.postpone(link, seconds)
            return
        log.info("peer is draining", link=link.number, peer=link.address, reason=reason, seconds=seconds)
        link.is_leaving = True
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
        self.forwarder.changed()
        self.forwarder.mend(self._loop.time(), lambda address: bool(self.problem_of(address)))
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
                self.dialling.look(now, self.forwarder.here.own)
            self._addresses.forget_old(now)
            self.admission.meters.look(now)

    def leave(self, *, reason: str, seconds: float) -> None:
        """Tell every peer that this instance leaves in so many seconds; they move, and what is held leaves."""
        self.farewell.say(list(self.links.values()), reason=reason, seconds=seconds)

    def left(self) -> Left:
        """What has not left yet."""
        return self.farewell.left(self.links.values(), self.forwarder.every_outbox())

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
        self.forwarder.abandon(self._loop.time())
