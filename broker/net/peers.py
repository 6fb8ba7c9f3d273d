"""
The links of this instance: how they are made, what they serve, how they end.

Peers owns every link from accept or dial to close. It decides who may connect, keeps one link for each pair of
processes, records in the `PeerTable` what a link serves, dials addresses that have traffic and no link, and moves
traffic away from peers that drain. When that changes an address's health it notifies the forwarder, because routing
decisions may change. A network that lets only one side connect still carries the answers, because a link also serves
what its peer announced. Where peers prove who they are, an announcement counts only if the certificate covers the host,
and if no other principal has answered when the address was dialled.

Work on many links is spread over loop iterations, so a mass disconnect does not delay live traffic, and so is the work
of the forwarder between its passes. Loop-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

import msgspec
import structlog

from broker.config.settings import Settings
from broker.errors import MAY_NOT_CONNECT, ConnectDeniedError
from broker.forwarding.entry import Outlet
from broker.forwarding.forwarder import Forwarder
from broker.net.backpressure import Backpressure
from broker.net.dialer import Dialer
from broker.net.drain import LEAVING_MAX, OwnDeparture, PeerDepartures
from broker.net.handshake import Handshaker, Handshakes, Opening
from broker.net.link import LINGER_SECONDS, Link, LinkState
from broker.net.listener import room_for_connections
from broker.net.mirrors import AnswerProbe, Mirrors
from broker.net.peer_table import LinksByProcess, OutboxBinder, PeerFrameCounts, PeerTable, announced_addresses
from broker.net.quotas import Admission, Permissions, keep_latest
from broker.net.tls import NO_SECURITY, Security
from broker.protocol.frame import Fatal, GoAway, Hello, Probe, ProbeReply, Rejected, encode_link
from broker.protocol.layout import ADDRESSES_MAX, NAME_MAX_BYTES
from broker.protocol.link_state import Agreement, Event, LinkStateMachine, stays
from broker.ratelimit import TokenBucket
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable
from broker.security.grants import Grants
from broker.supervision import SupervisedTask, Supervision

TICK_SECONDS = 1.0  # at most, between two visits of the links; less when heartbeats are short
OWN_SECONDS = 60.0  # after which an address that led to this instance is dialled again
OWN_LOST_SECONDS = 75.0  # after which it is forgotten, unless it still leads here
ENDS = 16  # links that end in one iteration; each takes some 50 us, most of it to notify others
REARM_SECONDS = 0.05  # after which the loop is asked again to watch a socket: see `Transport.renew_reader`
REARMS = 512  # in one iteration
VISIT_SECONDS = 0.001  # of one iteration, for visits of links one after the other
ASKED_MAX = 64  # broker instances remembered of one link, the latest; some 50 KB
REPORTS_PER_SECOND = 1.0  # traces of the same kind of failure
NOT_OURS = "another instance has our identity"

OnBug = Callable[[Link, Exception], None]

log = structlog.get_logger(__name__)


class Peers:
    """
    The links of this instance and the addresses they serve; a `LinkHandler`.

    Args:
        hello: The HELLO that new peers are sent.
        settings: Of the instance; the sections `endpoint` and `limits` are about peers.
        make_forwarder: Makes the forwarder whose outboxes are served; is given the callbacks that are about links.
        on_rejected: Called when a peer has advised that a frame was dropped there.
        on_capacity: Called when dialogs may find a link that accepts frames.
        answer_probe: Returns the role of this instance for a broker instance.
        security: The certificates and contexts of this instance for TLS.
        supervision: Supervises the task that ticks.
        jitter: Returns a number in [0, 1), a new one each time: by how much questions to a mirrored pair are spread.

    Attributes:
        links: All links that are not closed, by number.
        protocol_errors: The number of links that ended because the peer broke a rule, by the error's name.
        table: Which link serves which address.
    """

    def __init__(
        self,
        hello: Hello,
        settings: Settings,
        *,
        make_forwarder: Callable[..., Forwarder],
        on_rejected: Callable[[Link, Rejected], None],
        on_capacity: Callable[[], None],
        answer_probe: AnswerProbe,
        security: Security = NO_SECURITY,
        supervision: Supervision | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        endpoint, limits = settings.endpoint, settings.limits
        self._loop = asyncio.get_running_loop()
        self._on_rejected = on_rejected
        self._on_capacity = on_capacity
        self._supervision = supervision or Supervision()
        self.hello = hello
        self.links: dict[int, Link] = {}
        self.table = PeerTable()
        self.protocol_errors: Counter[str] = Counter()
        self.frame_counts = PeerFrameCounts()
        self.backpressure = Backpressure(endpoint.backpressure)
        self.permissions = Permissions(settings.config_option)
        self.admission = Admission(limits, room_for_connections(0 if security.server is None else limits.handshakes))
        self.handshaker = Handshaker(
            security,
            endpoint.handshake_timeout,
            self.protocol_errors,
            partial(self._open_link, dialled=None),
            Handshakes(limits.handshakes, self.admission.is_known),
        )
        self.probe_subscribers = ProbeSubscribers(answer_probe)
        self._dialled: dict[int, NetworkAddress] = {}  # what a link was dialled for, by its number
        self._own: dict[NetworkAddress, float] = {}  # addresses that were found to lead here, and when
        self._processes = LinksByProcess()
        self._fairness = LoopFairness(self.on_bug)
        self._changed = asyncio.Event()  # a link has closed or accepts more, or time has passed
        self._is_closing = False
        self._ticks: SupervisedTask | None = None
        self._next_work: asyncio.Handle | None = None
        self._reports: dict[type[Exception], TokenBucket] = {}
        self.forwarder = make_forwarder(
            request_link=self.request_link,
            health_of=self.table.health_for_routing,
            request_principal=self._request_principal,
            on_waiting=self.backpressure.on_waiting,
            schedule_work=self._schedule_work,
            report=self._report,
        )
        self.own_departure = OwnDeparture(self.links, self.forwarder.table)
        self.dialer = Dialer(
            self.handshaker,
            self.table,
            endpoint.connect_timeout,
            is_invented=self.forwarder.table.is_invented,
            on_open=self._open_link,
            on_unreached=self._on_unreached,
        )
        self.mirrors = Mirrors(
            self.forwarder,
            send_probe=self._send_probe,
            addresses_served_by=self.table.addresses_served_by,
            answer_probe=answer_probe,
            on_capacity=on_capacity,
            jitter=jitter,
        )
        self._binder = OutboxBinder(
            self.table, self.forwarder, self.mirrors, request_link=self.request_link, on_capacity=on_capacity
        )
        self._departures = PeerDepartures(self.table, self.dialer.request, self._close_after_goaway)

    def start(self) -> None:
        """Begin to tick."""
        self._ticks = self._supervision.keep("peers tick", self._run_ticks)

    # --- what the instance asks for ---

    def request_link(self, address: NetworkAddress) -> None:
        """Frames wait for this address: use its link, or dial it."""
        if self._is_closing:
            return
        if self.table.link_for(address) is not None:
            self._binder.bind_outboxes(address)
            self._loop.call_soon(self._on_capacity)  # not here: the caller is in the middle of a pass
            return
        self._departures.add_hope(address)
        self.dialer.request(address)

    def _request_principal(self, pair: MirroredPair) -> None:
        self.mirrors.use(pair)

    def _send_probe(self, address: NetworkAddress, probe: Probe) -> Link | None:
        """Send PROBE by the link of an address; None where there is none: it is dialled, and nothing was sent."""
        link = self.table.link_for(address)
        if link is not None:
            link.send_control(encode_link(probe))
        else:
            self.dialer.request(address, is_probe=True)
        return link

    def announce_role(self, broker_instance: bytes) -> None:
        """This instance's role for a broker instance has changed: answer all peers that asked for it again."""
        self.probe_subscribers.announce(broker_instance)
        self.mirrors.on_role_change(broker_instance)

    def on_routes(self, tables: Collection[RouteTable]) -> None:
        """Routes have changed; these are the tables of all databases."""
        self.mirrors.on_routes(tables)
        self.admission.on_routes(tables)
        self.dialer.on_routes(tables)

    # --- links are made ---

    def accept(self, sock: socket.socket, address: str) -> None:
        """A peer has connected."""
        if self._is_closing:
            sock.close()
        else:
            self.handshaker.accept(sock, address)

    def _on_unreached(self, address: NetworkAddress) -> None:
        """Dialling has failed, or was no longer needed."""
        self._on_health_changed()
        self._binder.rebind(address)
        self._departures.poll()

    def _open_link(self, opening: Opening, dialled: NetworkAddress | None) -> None:
        link = Link(
            opening.transport,
            opening.address,
            is_accept=dialled is None,
            connection=LinkStateMachine(self.hello, now=opening.begun_at, handshake_timeout=self.handshaker.timeout),
            forwarder=self.forwarder,
            handler=self,
        )
        self.links[link.number] = link
        if dialled is not None:
            self._dialled[link.number] = dialled
        log.debug("link opened", link=link.number, peer=link.address, is_accept=link.is_accept)
        refusal = self.admission.admit(link, self.forwarder.pool)
        denied = self._check_permission(link)
        if self._shows_our_certificate(link):
            denied = None  # it may be this instance, dialled by an own address: checked again after HELLO
        try:
            link.start(denied)
            if refusal:
                self.admission.turn_away(link, refusal)
        except OSError as error:
            link.close(error.strerror or str(error))

    def _check_permission(self, link: Link) -> ConnectDeniedError | None:
        """Give a link the permit of its peer; returns why that may not connect, if it may not."""
        link.permit = self.permissions.permit_of(link.transport.identity)
        return self.permissions.refuse(link.permit)

    def _shows_our_certificate(self, link: Link) -> bool:
        own, identity = self.handshaker.security.own, link.transport.identity
        return own is not None and identity is not None and identity.fingerprint == own.fingerprint

    # --- the life of a link, in its order (LinkHandler) ---

    def on_first_read(self, link: Link) -> None:
        """The link was read: make sure soon that the loop still watches its socket."""
        self._fairness.rearm_soon(link)

    def on_online(self, link: Link) -> None:
        """HELLO is complete: the link serves what it was dialled for and what its peer announced."""
        agreement = link.agreement
        assert agreement is not None
        dialled = self._dialled.get(link.number)
        is_own = agreement.is_self and self._is_this_instance(link, agreement)
        if dialled is not None and dialled in self._own and not is_own:
            self._forget_own(dialled)
        if agreement.is_self:
            self._turn_away_self(link, dialled, is_own=is_own)
            return
        log.info("link online", link=link.number, peer=link.address, name=agreement.peer.name, accepted=link.is_accept)
        denied = self._check_permission(link)
        if denied is not None:
            link.fail(denied)
            return
        self.frame_counts.open(link)
        self.admission.on_hello(link)
        if dialled is not None:
            history = self.table.histories[dialled]
            history.record_success()
            history.is_dialling = False
            if link.principal:
                history.principal = link.principal
                self.table.expel(dialled, link.principal)
        announced = announced_addresses(
            agreement, link.transport.identity, is_authenticating=self.handshaker.security.is_authenticating
        )
        if link.principal:  # once an address was dialled, only the principal that answered there announces it
            accepted = ("", link.principal)
            announced = frozenset(one for one in announced if self.table.principal_at(one) in accepted)
        if len(agreement.peer.addresses) > ADDRESSES_MAX:
            log.warning("too many addresses announced", peer=link.address, name=link.peer_name, kept=len(announced))
        is_changed = self._binder.serve(link, dialled, announced)
        is_changed |= self._resolve_duplicate(link, agreement)
        if is_changed:
            self._on_health_changed()
        self.dialer.verify(announced - self.forwarder.routing_context.own)
        self.own_departure.announce_to(link)
        self._departures.poll()

    def on_writable(self, link: Link) -> None:
        """The link accepts more: send the frames that wait for it."""
        self._binder.flush(link)
        self.backpressure.release_waiting()
        self._changed.set()
        if link.can_send:
            self._on_capacity()

    def on_event(self, link: Link, event: Event) -> None:
        """The peer sent a control frame that concerns more than its link."""
        if isinstance(event, Rejected):
            self.forwarder.on_rejected(event, self.table.addresses_served_by(link), self._loop.time())
            self._on_rejected(link, event)
            self.mirrors.on_rejected(link, event)
        elif isinstance(event, ProbeReply):
            self.mirrors.on_probe_reply(link, event)
        elif isinstance(event, Probe):
            self.probe_subscribers.answer(link, event)
        elif isinstance(event, GoAway):
            self._on_goaway(link, min(event.deadline_ms / 1000, LEAVING_MAX), event.reason)
        elif isinstance(event, Fatal):
            who, text = link.peer_shown, event.text
            log.warning("peer ended the link", link=link.number, peer=link.address, name=who, reason=text)
            link.close(f"FATAL from {who}: {text}")

    def on_eof(self, link: Link) -> None:
        """Nothing more arrives by a link; while this instance leaves, a peer that moved away still gets the rest."""
        if self.own_departure.is_announced and link.has_peer_finished and link.state is LinkState.LOGGED_IN:
            self._changed.set()
        else:
            self._fairness.close_soon(link)

    def on_bug(self, link: Link, error: Exception) -> None:
        """An exception of this program: log it, and close the link in the next iteration."""
        log.error("link failed", link=link.number, peer=link.address, exc_info=error)
        self._loop.call_soon(link.close, f"a bug of this program: {type(error).__name__}: {error}")

    def on_lost(self, link: Link) -> None:
        """The link is of no use: what it served is served by another, or dialled again while frames wait."""
        if link.error is not None:
            self.protocol_errors[type(link.error).__name__] += 1
        is_stranger = link.agreement is None and link.bytes_received > 0  # who only waits may test whether we listen
        if link.is_accept and link.error and (is_stranger or isinstance(link.error, ConnectDeniedError)):
            self.handshaker.remember_refused(link.address, str(link.error))
        is_self = link.agreement is not None and link.agreement.is_self  # each minute, and the address is logged
        if not self._is_closing and not is_self:
            (log.warning if link.agreement is None else log.info)(
                "link closed", link=link.number, peer=link.address, reason=link.reason
            )
        self._processes.remove(link)
        self._departures.forget(link)
        dialled = self._dialled.pop(link.number, None)
        self.dialer.on_link_lost(link, dialled)
        if self._binder.stop_serving(link, dialled):
            self._on_health_changed()

    def on_closed(self, link: Link) -> None:
        """Nothing is left of the link but what it counted."""
        del self.links[link.number]
        self.admission.release(link, self.forwarder.pool)
        self.frame_counts.close(link)
        self.probe_subscribers.forget(link)
        self._changed.set()

    # --- addresses that lead to this instance ---

    def _is_this_instance(self, link: Link, agreement: Agreement) -> bool:
        """
        Whether a peer that claims to be this instance is.

        A HELLO repeats what any peer was sent, so certificates decide where peers show them. Elsewhere the id of this
        process is the best there is: a copy of the state directory has the same `instance` and another one.
        """
        if self.handshaker.security.is_authenticating:
            return self._shows_our_certificate(link)
        return agreement.peer.arbitration == self.hello.arbitration

    def _turn_away_self(self, link: Link, dialled: NetworkAddress | None, *, is_own: bool) -> None:
        """Close a link whose peer says that it is this instance, and record the address if it is."""
        if not is_own:
            address, principal = "" if dialled is None else str(dialled), link.peer_id
            if dialled is None or self.table.problem_of(dialled) != NOT_OURS:
                log.warning(
                    "another instance has our identity", address=address, peer=link.address, principal=principal
                )
            link.close(NOT_OURS)
            return
        if dialled is not None:
            is_known, now = dialled in self._own, self._loop.time()
            self._own[dialled] = now
            if is_known:  # nothing has changed, so nothing follows from the end of this link
                del self._dialled[link.number]
                self.table.histories[dialled].is_dialling = False
            else:
                self.forwarder.add_own_addresses({dialled}, now)
        link.close("the address leads to this instance")

    def _check_own(self, now: float) -> None:
        """Dial each address that leads here again after a minute, and forget those that no longer do."""
        for address, found_at in list(self._own.items()):
            if now - found_at >= OWN_LOST_SECONDS:
                self._forget_own(address)
            elif now - found_at >= OWN_SECONDS and address in self.dialer.named:
                self.dialer.request(address)

    def _forget_own(self, address: NetworkAddress) -> None:
        del self._own[address]
        if str(address) not in self.hello.addresses:  # else it is ours by configuration
            self.forwarder.add_own_addresses(set(), self._loop.time(), address)
            self._on_health_changed()

    # --- which link serves what changes ---

    def _resolve_duplicate(self, link: Link, agreement: Agreement) -> bool:
        """One connection for each pair of processes: the loser drains; returns whether routing depends on that."""
        other = self._processes.duplicate_of(link)
        self._processes.add(link)
        if other is None:
            return False
        link_stays = stays(self.hello.arbitration, agreement.peer.arbitration, opened_here=not link.is_accept)
        loser, survivor = (other, link) if link_stays else (link, other)
        log.info("link lost arbitration", link=loser.number, peer=loser.address, survivor=survivor.number)
        loser.drain()
        dialled = self._dialled.pop(loser.number, None)
        is_changed = self._binder.serve(survivor, dialled)
        return self._binder.stop_serving(loser, dialled) or is_changed

    def _on_goaway(self, link: Link, seconds: float, reason: str) -> None:
        """The peer drains: use the link until another one leads on, and look for that."""
        if link.is_peer_draining or link.state is not LinkState.LOGGED_IN:  # it may be said again and again
            self._departures.postpone(link, seconds)
            return
        log.info("peer is draining", link=link.number, peer=link.address, reason=reason, seconds=seconds)
        link.is_peer_draining = True
        self._dialled.pop(link.number, None)
        addresses = list(self.table.addresses_of(link))
        for address in addresses:
            self._binder.rebind(address, "the peer is draining")
        hopes = () if self.own_departure.is_announced else self._binder.alternatives_to(addresses)
        self._departures.begin(link, seconds, hopes)
        if self._binder.is_missed(addresses):
            self._on_health_changed()

    def _close_after_goaway(self, link: Link) -> None:
        """Send nothing more to a peer that drains; read until it closes."""
        log.info("moved away", link=link.number, peer=link.address)
        link.drain(self._departures.remaining(link) + self.handshaker.timeout)
        if self._binder.stop_serving(link, None):
            self._on_health_changed()

    def _on_health_changed(self) -> None:
        """Which addresses are served has changed: frames and dialogs are routed again."""
        self.table.forget_asked()
        self.forwarder.on_health_changed()
        self.forwarder.reroute_failed(self._loop.time(), lambda address: bool(self.table.problem_of(address)))
        self.backpressure.release_waiting()
        self._on_capacity()

    # --- reload ---

    def apply(self, settings: Settings, addresses: tuple[str, ...], security: Security) -> None:
        """
        Use these settings from now on; no link is closed for them. `Handshaker.secure` replaces those of TLS.

        The two sides of a connection keep what they have agreed on (largest frame, heartbeat, addresses) until the
        connection is made again. Rates, shares of the pool, pauses and numbers of connections hold for existing links
        too.

        Args:
            settings: Of the instance.
            addresses: At which peers reach it.
            security: In force.
        """
        endpoint, limits = settings.endpoint, settings.limits
        heartbeat_ms = int(endpoint.heartbeat * 1000)
        self.hello = msgspec.structs.replace(
            self.hello, max_frame=endpoint.max_frame, heartbeat_ms=heartbeat_ms, addresses=addresses
        )
        self.handshaker.timeout = endpoint.handshake_timeout
        self.dialer.seconds = endpoint.connect_timeout
        self.backpressure.limit_pauses(endpoint.backpressure)
        self.handshaker.handshakes.most = limits.handshakes
        reserved = 0 if security.server is None else limits.handshakes
        self.admission.apply(limits, room_for_connections(reserved), self.forwarder.pool)

    def apply_grants(self, grants: Grants) -> None:
        """Use these grants from now on: peers that were refused here are dialled again, and links judged again."""
        if self.permissions.apply(grants):
            self.dialer.retry_now(lambda problem: MAY_NOT_CONNECT in problem and not problem.startswith("FATAL"))
            for link in list(self.links.values()):
                denied = self._check_permission(link)
                if denied is not None:
                    link.fail(denied)

    # --- time and the end ---

    async def _run_ticks(self) -> None:
        while True:
            pause = min(TICK_SECONDS, self.hello.heartbeat_ms / 2000, self.handshaker.timeout / 2)
            due = self._loop.time() + pause
            await asyncio.sleep(pause)
            now = self._loop.time()
            if now - due < TICK_SECONDS:  # otherwise the loop was late, and bytes from peers have yet to be read
                await self._fairness.tick(list(self.links.values()))
            now = self._loop.time()
            self.forwarder.expire(now)
            self.backpressure.release_waiting()
            self._departures.poll()
            self._changed.set()
            if not self.own_departure.is_announced:
                self._check_own(now)
                self.dialer.dial_due(now, self.forwarder.routing_context.own)
            self.table.prune(now)
            self.admission.meters.prune(now)

    async def close(self, *, reason: str, seconds: float) -> None:
        """Announce the departure, unless that was done, let what is held leave for so long, then close all links."""
        self._is_closing = True
        self.dialer.finish()
        if not self.own_departure.is_announced:
            self.own_departure.announce(reason=reason, seconds=seconds)
        await self._wait_until(lambda: not self._binder.has_pending, seconds)
        for link in list(self.links.values()):
            link.drain()
        await self._wait_until(
            lambda: all(link.state is not LinkState.DRAINING for link in self.links.values()),
            min(seconds, LINGER_SECONDS),
        )
        self.backpressure.close()
        self._departures.close()
        await self.handshaker.handshakes.close()
        await self.dialer.close()
        if self._ticks is not None:
            await self._ticks.stop()
        for link in list(self.links.values()):
            link.close(reason)
        self.mirrors.close()
        self.forwarder.drop_all(self._loop.time())

    async def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until something is so, for so many seconds at most; asked at every change of links, and every tick."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()

    # --- the work of the forwarder between its passes ---

    def _schedule_work(self) -> None:
        """Let the forwarder work on, not in this call."""
        if self._next_work is None:
            self._next_work = self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._next_work = None
        self.forwarder.work(self._loop.time())
        self.backpressure.release_waiting()

    def _report(self, outlet: Outlet | None, error: Exception) -> None:
        """Something failed in the middle of a pass: log it, and close the link, if it was one, after the pass."""
        now = self._loop.time()
        if self._reports.setdefault(type(error), TokenBucket(REPORTS_PER_SECOND, 1, now)).allow(now):
            log.error("pass went on without", link=getattr(outlet, "number", None), exc_info=error)
        if isinstance(outlet, Link):
            self._loop.call_soon(outlet.close, f"could not be written to: {type(error).__name__}: {error}")


# --- collaborators ---


class LoopFairness:
    """
    Bounds the closes and visits of links in one iteration of the loop.

    Args:
        on_bug: What is done for one link has failed; the others go on.
    """

    def __init__(self, on_bug: OnBug) -> None:
        self._on_bug = on_bug
        self._ended: deque[Link] = deque()
        self._closed = 0  # in this iteration
        self._next: asyncio.Handle | None = None
        self._read: deque[Link] = deque()
        self._rearm: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def close_soon(self, link: Link) -> None:
        """Close a link whose input is over: now, or in a later iteration when many have ended in this one."""
        self._ended.append(link)
        if self._next is None:
            self._next = self._loop.call_soon(self._close_next)
        if self._closed < ENDS and len(self._ended) == 1:
            self._closed += 1
            self._do(self._ended.popleft(), lambda link: link.close_after_eof())

    async def tick(self, links: Iterable[Link]) -> None:
        """Have each of these links do what is due by time, in as many iterations as that takes."""
        due = time.monotonic() + VISIT_SECONDS
        for link in links:
            self._do(link, lambda link: link.tick(self._loop.time()))
            if time.monotonic() >= due:
                await asyncio.sleep(0)
                due = time.monotonic() + VISIT_SECONDS

    def rearm_soon(self, link: Link) -> None:
        """A link was read: make sure a little later that the loop still watches its socket."""
        self._read.append(link)
        if self._rearm is None:
            self._rearm = self._loop.call_later(REARM_SECONDS, self._rearm_next)

    def _close_next(self) -> None:
        self._next = None
        self._closed = min(len(self._ended), ENDS)
        if self._closed:
            self._next = self._loop.call_soon(self._close_next)
        for _ in range(self._closed):
            self._do(self._ended.popleft(), lambda link: link.close_after_eof())

    def _rearm_next(self) -> None:
        for _ in range(min(len(self._read), REARMS)):
            self._do(self._read.popleft(), lambda link: link.rearm_reader())
        self._rearm = self._loop.call_soon(self._rearm_next) if self._read else None

    def _do(self, link: Link, act: Callable[[Link], None]) -> None:
        try:
            act(link)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this link only
            self._on_bug(link, error)


class ProbeSubscribers:
    """
    Who asked for the role of which broker instance, so that a change reaches them.

    Every PROBE is answered at once. The peer is answered again, with the id of its last PROBE, when the role here
    changes, so it need not wait for its next question.

    Attributes:
        answered: PROBE frames answered since the start.
    """

    def __init__(self, answer_probe: AnswerProbe) -> None:
        self.answered = 0
        self._answer_probe = answer_probe
        self._probes: dict[Link, dict[bytes, Probe]] = {}  # by broker instance, the latest at the end

    def answer(self, link: Link, probe: Probe) -> None:
        """Answer with what holds now, and remember who asked."""
        self.answered += 1
        kept = msgspec.structs.replace(probe, service=probe.service[:NAME_MAX_BYTES])
        keep_latest(self._probes.setdefault(link, {}), probe.broker_instance, kept, ASKED_MAX)
        link.send_control(encode_link(self._answer_probe(probe)))

    def announce(self, broker_instance: bytes) -> None:
        """The role for a broker instance has changed: answer again all that asked."""
        for link, probes in list(self._probes.items()):
            probe = probes.get(broker_instance)
            if probe is not None:
                link.send_control(encode_link(self._answer_probe(probe)))

    def forget(self, link: Link) -> None:
        """The link is closed."""
        self._probes.pop(link, None)


def largest_frame(links: Iterable[Link], announced: int) -> int:
    """The largest frame that may arrive, in bytes: what new peers learn, or any that is connected did."""
    return max([announced, *(link.connection.own.max_frame for link in links)])


def refresh_narrow(links: Iterable[Link], largest: int) -> None:
    """Frames of up to `largest` bytes may be for these links; where the peer accepts less, each has to be measured."""
    for link in links:
        if link.agreement is not None:
            link.is_narrow = link.max_frame < largest
