"""
Asks mirrored pairs which partner is the principal, as `broker.routing.mirrored` decides; the forwarder follows.

A pair is asked from the moment frames need it until no route names it; so there are never more pairs than mirrored
routes. A reply about a broker instance on the link that serves an address counts for every pair that has both,
requested or not: a partner that takes over reports this on the link on which it was asked.

Whenever another link begins to serve an address that is asked, or is the principal's, the probe is sent again on that
link, so that its peer knows which instance to notify. A probe that waits for its connection is sent even if the other
partner has since claimed the role, as only the answer shows that there is a mirror. When the connection fails, the
probe is dropped.

A frame refused at a principal's address proves nothing by itself, as it may have been for another service there. The
principal is asked, and its answer decides. This instance itself is asked without a link. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import structlog

from broker.conversation.window import NEVER
from broker.dialog.status import PathProblem
from broker.forwarding.forwarder import REFUSALS, Forwarder
from broker.net.link import Link
from broker.protocol.frame import Probe, ProbeReply, Rejected
from broker.protocol.layout import NO_GUID, show_guid
from broker.ratelimit import TokenBucket
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import AddressState, MirroredRoute, MirrorRole
from broker.routing.route import MirroredPair, Route
from broker.routing.table import RouteTable
from broker.supervision import Timer

STATE_CHANGED = 144  # the original's event, Broker:Mirrored Route State Changed
AT_ONCE = 8  # log lines of one pair at once: two failovers; a partner may claim and recant thousands of times a second
PAUSE_SECONDS = 1.0  # after which each is allowed again
CHECK_SECONDS = 0.2  # between two questions to a principal at whose address frames are refused
THIS_INSTANCE = "this instance"

AnswerProbe = Callable[[Probe], ProbeReply]
"""What this instance is for a broker instance now; must not fail."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class PairInUse:
    """
    One pair in use.

    Attributes:
        route: What is known of it.
        log: Writes its changes.
        links: By which each address was asked last.
        waiting: Addresses that are to be asked when there is a link.
        checked_at: Loop time of the last question after a refusal.
    """

    pair: MirroredPair
    route: MirroredRoute[NetworkAddress]
    log: MirrorLog
    links: dict[NetworkAddress, Link] = field(default_factory=dict)
    waiting: set[NetworkAddress] = field(default_factory=set)
    checked_at: float = float("-inf")
    timer: Timer = field(default_factory=Timer)

    def concerns(self, address: NetworkAddress) -> bool:
        """Whether what is said at this address may matter now (R6.2: not at the partner's of a principal)."""
        return self.route.principal in {None, address}

    def stop(self) -> None:
        """Stop asking."""
        self.timer.cancel()
        self.log.close()


class Mirrors:
    """
    The pairs in use. A leaving link counts as gone: a principal that drains is no longer the principal.

    Args:
        forwarder: Learns who the principals are.
        send_probe: Sends PROBE by the link of an address, which it returns; None where there is none yet.
        addresses_served_by: Returns the addresses whose frames leave by a link.
        answer_probe: Answers for this instance itself.
        on_capacity: Called when dialogs are routed again, as the generation of the forwarder has risen.
        jitter: Returns a number in [0, 1), a new one each time.

    Attributes:
        in_use: The pairs in use and their state.
        probes: The number of probes sent since the start.
        answers: The number of answers by role.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        send_probe: Callable[[NetworkAddress, Probe], Link | None],
        addresses_served_by: Callable[[Link], Collection[NetworkAddress]],
        answer_probe: AnswerProbe,
        on_capacity: Callable[[], None],
        jitter: Callable[[], float],
    ) -> None:
        self.in_use: dict[MirroredPair, PairInUse] = {}
        self.probes = 0
        self.answers: Counter[str] = Counter()
        self._forwarder = forwarder
        self._send_probe = send_probe
        self._addresses_served_by = addresses_served_by
        self._answer_probe = answer_probe
        self._on_capacity = on_capacity
        self._jitter = jitter
        self._tables: tuple[RouteTable, ...] = ()
        self._at: dict[NetworkAddress, dict[PairInUse, None]] = {}
        self._of: dict[bytes, dict[PairInUse, None]] = {}
        self._requested: dict[MirroredPair, None] = {}
        self._ids = count(1)
        self._loop = asyncio.get_running_loop()

    # --- pairs come and go ---

    def use(self, pair: MirroredPair) -> None:
        """As `AskPrincipal`: frames are for a pair whose principal is not known. Called in the middle of a pass."""
        if pair not in self.in_use and pair not in self._requested:
            self._requested[pair] = None
            if len(self._requested) == 1:
                self._loop.call_soon(self._begin)

    def on_routes(self, tables: Iterable[RouteTable]) -> None:
        """Routes have changed; these are the tables of all databases. Forget pairs that no route names any longer."""
        self._tables = tuple(tables)
        gone = [one for pair, one in self.in_use.items() if pair not in self._named(pair)]
        for one in gone:
            del self.in_use[one.pair]
            one.stop()
            _remove(self._of, one.pair.broker_instance.bytes, one)
            for address in one.route.addresses:
                _remove(self._at, address, one)
        self._lead({one.pair: None for one in gone if one.route.principal is not None})

    def close(self) -> None:
        """Stop asking."""
        for one in self.in_use.values():
            one.stop()

    # --- for dialogs and views ---

    def trouble_of(self, pair: MirroredPair) -> PathProblem:
        """Return the answers of a pair in words, and when it is asked again; nothing while it was not asked."""
        one = self.in_use.get(pair)
        if one is None:
            return PathProblem()
        return PathProblem(describe(one.route), NEVER if one.route.due is None else one.route.due)

    def principal_of(self, pair: MirroredPair) -> NetworkAddress | None:
        """Where frames for a pair are sent now."""
        return self._forwarder.routing_context.principals.get(pair)

    def waiting(self, pair: MirroredPair) -> tuple[int, int]:
        """Frames and bytes that wait for a pair."""
        outbox = self._forwarder.table.pair_outboxes.get(pair)
        return (0, 0) if outbox is None else (len(outbox.held), outbox.share.used_bytes)

    def route_name(self, pair: MirroredPair) -> str:
        """The name of a live route to a pair; of several the first of the first table."""
        return next((route.name for route in self._routes(pair) if route.pair == pair), "")

    # --- what links bring ---

    def on_served(self, address: NetworkAddress, link: Link) -> None:
        """Probe the address on its new link if a probe waits or the answer may matter, so that the peer notifies us."""
        concerned = self._at.get(address, ())
        for one in concerned:
            one.route.meet(address, _instance_at(link))
            if address in one.waiting or (one.concerns(address) and one.links.get(address) is not link):
                self._ask(one, address)
        self._apply(concerned)

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        """The address cannot be reached: a principal there is no longer the principal (R6.3)."""
        now = self._loop.time()
        for one in self._at.get(address, ()):
            one.links.pop(address, None)
            one.waiting.discard(address)
            self._ask_all(one, one.route.on_unreachable(address, problem, now))
        self._apply(self._at.get(address, ()))

    def on_probe_reply(self, link: Link, reply: ProbeReply) -> None:
        """The reply of a peer counts for the addresses that its link serves, and for no other."""
        concerned = self._of.get(reply.broker_instance)
        if concerned:
            self.answers[MirrorRole.of(reply.role)] += 1
            self._on_reply(concerned, self._addresses_served_by(link), reply)

    def on_rejected(self, link: Link, rejected: Rejected) -> None:
        """
        The peer is not the principal of something. It does not say of what, and it may be nothing of ours: see whether
        it is the principal still, once for each broker instance, as its answer counts for all services.
        """
        if rejected.code not in REFUSALS:
            return
        now = self._loop.time()
        for address in self._addresses_served_by(link):
            led = [one for one in self._at.get(address, ()) if one.route.principal == address]
            for one in {one.pair.broker_instance: one for one in reversed(led)}.values():
                if now - one.checked_at >= CHECK_SECONDS:
                    one.checked_at = now
                    self._ask(one, address)

    def on_role_change(self, broker_instance: bytes) -> None:
        """The role here has changed; matters where an address of a pair leads to this instance."""
        for one in self._of.get(broker_instance, ()):
            for address in one.route.addresses:
                if address in self._forwarder.routing_context.own:
                    self._loop.call_soon(self._ask_ourselves, one, address)

    # --- in calling order ---

    def _begin(self) -> None:
        """Ask those that were requested, and whatever else may have the principal of the same broker instance."""
        requested, self._requested = self._requested, {}
        begun = []
        for pair in [other for one in requested for other in self._named(one)]:
            if pair not in self.in_use:
                route = MirroredRoute(pair.address, pair.mirror_address, self._jitter)
                one = self.in_use[pair] = PairInUse(pair, route, MirrorLog(pair, route, self._loop))
                self._of.setdefault(pair.broker_instance.bytes, {})[one] = None
                for address in route.addresses:
                    self._at.setdefault(address, {})[one] = None
                self._ask_all(one, route.use(self._loop.time()))
                begun.append(one)
        self._apply(begun)

    def _named(self, pair: MirroredPair) -> list[MirroredPair]:
        """All pairs of the same service and broker instance that live routes name."""
        return list(dict.fromkeys(route.pair for route in self._routes(pair) if route.pair is not None))

    def _routes(self, pair: MirroredPair) -> Iterator[Route]:
        service, instance = pair.remote_service_name, pair.broker_instance.bytes
        return (route for table in self._tables for route in table.routes(service, instance))

    def _ask(self, one: PairInUse, address: NetworkAddress) -> None:
        """Send PROBE, by the link there is or the next one."""
        one.waiting.discard(address)
        if address in self._forwarder.routing_context.own:
            self._loop.call_soon(self._ask_ourselves, one, address)
            return
        link = self._send_probe(address, self._probe(one.pair))
        if link is None:
            one.waiting.add(address)
        else:
            one.links[address] = link
            one.route.meet(address, _instance_at(link))
            self.probes += 1

    def _probe(self, pair: MirroredPair) -> Probe:
        return Probe(next(self._ids), pair.remote_service_name, pair.broker_instance.bytes)

    def _ask_ourselves(self, one: PairInUse, address: NetworkAddress) -> None:
        if one.pair in self.in_use:
            one.route.meet(address, THIS_INSTANCE)
            self._on_reply([one], [address], self._answer_probe(self._probe(one.pair)))

    def _on_reply(self, some: Collection[PairInUse], addresses: Iterable[NetworkAddress], reply: ProbeReply) -> None:
        now = self._loop.time()
        for address in addresses:
            for one in some:
                if address in one.route.addresses:
                    self._ask_all(one, one.route.on_reply(address, reply.role, reply.epoch, now))
        self._apply(some)

    def _ask_all(self, one: PairInUse, addresses: Iterable[NetworkAddress]) -> None:
        """Ask where the route has to be asked."""
        for address in addresses:
            self._ask(one, address)

    def _apply(self, some: Collection[PairInUse]) -> None:
        """Apply news of these pairs: notify the forwarder of new principals, set the timers, and log the changes."""
        principals = self._forwarder.routing_context.principals
        self._lead({one.pair: one.route.principal for one in some if one.route.principal != principals.get(one.pair)})
        for one in some:
            one.timer.at(one.route.due, self._on_time, one, one.route.due)
            one.log.update()

    def _on_time(self, one: PairInUse, due: float) -> None:
        self._ask_all(one, one.route.on_time(max(due, self._loop.time())))
        self._apply([one])

    def _lead(self, changes: Mapping[MirroredPair, NetworkAddress | None]) -> None:
        if changes:
            self._forwarder.set_principals(changes, self._loop.time())
            self._loop.call_soon(self._on_capacity)


class MirrorLog:
    """
    The changes of one pair in the log: each at once while they are few, one line a second when they are many.

    A failover is a handful of changes, and each is logged with its time. Changes above the rate are counted, and
    reported by one line, with the state at that time.
    """

    def __init__(
        self, pair: MirroredPair, route: MirroredRoute[NetworkAddress], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._pair = pair
        self._route = route
        self._loop = loop
        self._seen: tuple[object, ...] = ()  # state, principal and alarm as of the last update
        self._changes = 0  # not written yet
        self._bucket = TokenBucket(1 / PAUSE_SECONDS, AT_ONCE, loop.time())
        self._summary = Timer()

    def update(self) -> None:
        """Log the news of the pair if its state has changed: now, or together with the changes that follow soon."""
        seen = self._route.state, self._route.principal, self._route.alarm
        if seen == self._seen:
            return
        self._seen = seen
        self._changes += 1
        if self._summary.due is not None:
            return
        if self._bucket.allow(self._loop.time()):
            self._write()
        else:
            self._summary.after(PAUSE_SECONDS, self._sum_up)

    def close(self) -> None:
        """Stop writing."""
        self._summary.cancel()

    def _sum_up(self) -> None:
        self._bucket.charge(1, self._loop.time())
        self._write()

    def _write(self) -> None:
        route = self._route
        (log.warning if route.alarm else log.info)(
            "mirrored route state changed",
            number=STATE_CHANGED,
            state=int(route.state),
            state_desc=route.state.name,
            service=self._pair.remote_service_name,
            broker_instance=show_guid(self._pair.broker_instance),
            principal=None if route.principal is None else str(route.principal),
            epoch=route.epoch,
            alarm=route.alarm,
            changes=self._changes,
        )
        self._changes = 0


def describe(route: MirroredRoute[NetworkAddress]) -> str:
    """Return the answers of both partners, in the order of the route, and any alarm."""
    said = ", ".join(f"{address} {_said(route.seen[address])}" for address in route.addresses)
    return f"{said}; {route.alarm}" if route.alarm else said


def _said(seen: AddressState) -> str:
    if seen.problem:
        return f"({seen.problem})"
    if seen.role is None:
        return "has not answered yet"
    return f"says {seen.role}" if seen.epoch is None else f"says {seen.role}, epoch {seen.epoch}"


_Key = TypeVar("_Key", bound=Hashable)


def _instance_at(link: Link) -> str:
    """The instance at the other end, in words; empty when that is unknown."""
    agreement = link.agreement
    if agreement is None or agreement.peer.instance == NO_GUID:
        return ""
    return f"instance {show_guid(agreement.peer.instance)}"


def _remove(index: dict[_Key, dict[PairInUse, None]], key: _Key, one: PairInUse) -> None:
    some = index[key]
    del some[one]
    if not some:
        del index[key]
