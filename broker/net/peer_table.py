"""Part of `broker.net.dialer`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import structlog

from broker.forwarding.forwarder import Forwarder
from broker.net.link import Link, LinkState
from broker.net.tls import Identity
from broker.protocol.frame import ProbeReply, Rejected
from broker.protocol.layout import ADDRESSES_MAX, NO_GUID
from broker.protocol.link_state import Agreement
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.decide import AddressHealth

# --- backoff ---
# Part of `broker.net.dialer`.


BACKOFF_FIRST = 0.2  # seconds


BACKOFF_CAP = 10.0  # seconds; R6.3 has mirrored pairs asked that often


SPREAD = 0.5  # of a wait, at most, is taken off by chance


class DialQueue(IntEnum):
    """Where an address waits to be dialled, the better the higher."""

    INVENTED = 0  # no route names it, or a link serves it already
    NAMED = 1
    PROBED = 2  # a mirrored pair is asked there for its principal


@dataclass(slots=True)
class DialHistory:
    """
    What is remembered of one address; changed by `Peers` only.

    Shape: `failures` in a row; `suppressed_until` monotonic seconds; `problem` of the last failure, empty when none;
    `is_under_way` from when it is wanted until there is a link or a failure; `queue` it waits in meanwhile, then None;
    `principal` of the peer that answered there last, empty while none has or where peers do not prove who they are.
    """

    failures: int = 0
    suppressed_until: float = 0.0
    problem: str = ""
    is_under_way: bool = False
    queue: DialQueue | None = None
    principal: str = ""
    _doublings: int = 0

    def failed(self, problem: str, now: float, jitter: Callable[[], float] = random.random) -> float:
        """Note a failure; returns the seconds to wait before the next attempt. Shape: `jitter` gives 0 .. 1."""
        if now > self.suppressed_until + 2 * BACKOFF_CAP:  # an attempt itself may take some time
            self._doublings = 0
        wait = min(BACKOFF_CAP, BACKOFF_FIRST * 2.0**self._doublings) * (1.0 - SPREAD * jitter())
        self._doublings = min(self._doublings + 1, 16)
        self.failures += 1
        self.problem = problem
        self.suppressed_until = now + wait
        return wait

    def succeeded(self) -> None:
        """The address answered: nothing is held against it."""
        self.failures = self._doublings = 0
        self.suppressed_until = 0.0
        self.problem = ""


# --- servers ---
# Which link serves which address: the one dialled for it first, then those whose peers announced it, the oldest
# first.
#
# A peer may announce what it likes and many may announce the same, so nothing here costs more than in proportion to
# the
# addresses of the one link that comes or goes. Loop-only; changed by `broker.net.peers` alone.


class Servers:
    """Who serves what."""

    def __init__(self) -> None:
        self._addresses: dict[Link, dict[NetworkAddress, None]] = {}
        self._links: dict[NetworkAddress, dict[Link, None]] = {}

    @property
    def addresses(self) -> Iterable[NetworkAddress]:
        """Every address that a link serves, or did until it began to end."""
        return self._links.keys()

    def addresses_of(self, link: Link) -> Iterable[NetworkAddress]:
        """What a link serves."""
        return self._addresses.get(link, ())

    def serving(self, address: NetworkAddress) -> Link | None:
        """The link that takes frames for this address now; one whose peer is leaving where there is no other."""
        leaving = None
        for link in self._links.get(address, ()):
            if link.state is LinkState.LOGGED_IN:
                if not link.is_peer_draining:
                    return link
                leaving = leaving or link
        return leaving

    def staying(self, address: NetworkAddress) -> Link | None:
        """The same, if its peer stays."""
        link = self.serving(address)
        return None if link is None or link.is_peer_draining else link

    def add(self, link: Link, address: NetworkAddress, *, is_first: bool = False) -> None:
        """From now on a link serves an address, before all others when it was dialled for it."""
        self._addresses.setdefault(link, {})[address] = None
        links = self._links.setdefault(address, {})
        if is_first and link not in links:
            self._links[address] = {link: None, **links}
        else:
            links[link] = None

    def expel(self, address: NetworkAddress, principal: str) -> None:
        """Links of peers that have proved to be another principal do not serve an address any more."""
        for link in list(self._links.get(address, ())):
            identity = link.transport.identity
            if identity is not None and identity.principal_name != principal:
                del self._links[address][link]
                del self._addresses[link][address]

    def remove(self, link: Link) -> list[NetworkAddress]:
        """A link serves nothing any more; what it did."""
        addresses = list(self._addresses.pop(link, ()))
        for address in addresses:
            links = self._links[address]
            del links[link]
            if not links:
                del self._links[address]  # nothing of what strangers announce may stay
        return addresses


# --- addresses ---
# What is known of addresses: who serves them, how dialling them went, and whose health somebody has asked for.
#
# Remembered ways depend on the health of the addresses that were looked at when they were decided, and of no others.
# So
# it is noted which were, and a stranger that announces anything else comes and goes without costing anybody a way.
# Loop-only; changed by `broker.net.peers` alone.


ASKED_MAX = 10_000  # addresses of which it is noted that they matter; past it all do
ATTEMPTS_MAX = 10_000  # addresses remembered: with ADDRESS 'TRANSPORT' a peer may invent them

log = structlog.get_logger(__name__)


class Addresses:
    """Shape: `attempts` what is remembered of addresses dialled; `servers` who serves what."""

    def __init__(self) -> None:
        self.attempts: dict[NetworkAddress, DialHistory] = {}
        self.servers = Servers()
        self._asked: set[NetworkAddress] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def known(self) -> set[NetworkAddress]:
        """Every address that was dialled or is served."""
        return self.attempts.keys() | set(self.servers.addresses)

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        """Whether an address is served, and for how long, was not tried, or did not answer lately; that matters now."""
        if len(self._asked) < ASKED_MAX:
            self._asked.add(address)
        link = self.servers.serving(address)
        if link is not None:
            return AddressHealth.LEAVING if link.is_peer_draining else AddressHealth.CONNECTED
        attempts = self.attempts.get(address)
        is_suppressed = attempts is not None and self._loop.time() < attempts.suppressed_until
        return AddressHealth.SUPPRESSED if is_suppressed else AddressHealth.UNTRIED

    def answered_by(self, address: NetworkAddress) -> str:
        """The principal that answered when an address was dialled; empty when that is not known."""
        attempts = self.attempts.get(address)
        return "" if attempts is None else attempts.principal

    def matters(self, address: NetworkAddress) -> bool:
        """Whether anybody has asked for the health of an address since `forget_who_asked`."""
        return address in self._asked or len(self._asked) >= ASKED_MAX

    def forget_who_asked(self) -> None:
        """Everybody who wants to know asks again."""
        self._asked.clear()

    def problem_of(self, address: NetworkAddress) -> str:
        """Why an address is not reached: its last attempt failed, or its link was lost; empty when all is well."""
        attempts = self.attempts.get(address)
        return "" if attempts is None or self.servers.staying(address) is not None else attempts.problem

    def suppress(self, address: NetworkAddress, problem: str) -> None:
        """An attempt has failed, or the link was lost: do not try again for a while. The same again is a detail."""
        is_told = problem == self.attempts[address].problem
        seconds = round(self.attempts[address].failed(problem, self._loop.time()), 3)
        if is_told:
            log.debug("address suppressed", address=str(address), reason=problem, seconds=seconds)
        else:
            log.info("address suppressed", address=str(address), reason=problem, seconds=seconds)

    def forget_old(self, now: float) -> None:
        """Keep no more of the past than there is room for."""
        if len(self.attempts) > ATTEMPTS_MAX:
            self.attempts = {
                address: attempts
                for address, attempts in self.attempts.items()
                if attempts.is_under_way or now < attempts.suppressed_until or self.servers.serving(address) is not None
            }


# --- announced ---
# The addresses that a peer announced in its HELLO, as far as they are to be believed.


def announced(
    agreement: Agreement, identity: Identity | None = None, *, is_authenticating: bool = False
) -> frozenset[NetworkAddress]:
    """
    The addresses under which a peer says it can be reached: of the first `ADDRESSES_MAX`, those that are addresses.

    Args:
        agreement: With the peer's HELLO.
        identity: What its certificate says; None when it has shown none.
        is_authenticating: Whether only hosts that the certificate covers are believed.
    """
    addresses = set()
    for text in agreement.peer.addresses[:ADDRESSES_MAX]:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if isinstance(address, NetworkAddress):
            addresses.add(address)
    if is_authenticating:
        return frozenset(one for one in addresses if identity is not None and identity.covers(one.host))
    return frozenset(addresses)


# --- heard ---
# Under which name metrics count a peer, and how many dialog frames came from it since the start.
#
# Peers choose their names, and each is a series that the scraper keeps. So there is a bound on all of them and one on
# those of a principal, and a name belongs to the principal that came with it first: a peer cannot use up the names of
# others, nor be counted as one of them. Where peers prove nothing only the first bound holds.


PEER_NAMES_MAX = 1000
NAMES_EACH_MAX = 64  # of one principal: instances may share a certificate
OTHER_PEERS = "other"


class PeerFrameCounts:
    """Labels of links, and counts by label and kind. Loop-only."""

    def __init__(self) -> None:
        self._closed: dict[str, Counter[int]] = {}
        self._principals: dict[str, str] = {}  # by name; empty where none was proved
        self._names: Counter[str] = Counter()  # how many each principal has

    def counts(self, links: Iterable[Link]) -> dict[str, dict[int, int]]:
        """Those of closed links, and of these, which are open. Cost: 1 us for each name and each link."""
        received = {label: dict(counts) for label, counts in self._closed.items()}  # a copy as a counter takes 3 us
        for link in links:
            if link.label:
                counts = received.setdefault(link.label, {})
                for kind, frames in link.received.items():
                    counts[kind] = counts.get(kind, 0) + frames
        return received

    def greet(self, link: Link) -> None:
        """A link is online: give it its label."""
        identity = link.transport.identity
        is_free = self._take(link.peer_name, "" if identity is None else identity.principal_name)
        link.label = link.peer_name if is_free else OTHER_PEERS
        self._closed.setdefault(link.label, Counter())

    def close(self, link: Link) -> None:
        """Nothing more comes from a link; keep what did."""
        if link.label and link.received:
            self._closed[link.label].update(link.received)

    def _take(self, name: str, principal: str) -> bool:
        """Whether a principal has a name from now on; one that was proved takes it over from peers that prove none."""
        owner = self._principals.get(name)
        if owner == principal:
            return True
        if not name or owner or (owner is None and len(self._principals) >= PEER_NAMES_MAX):
            return False
        if principal and self._names[principal] >= NAMES_EACH_MAX:
            return False
        self._principals[name] = principal
        self._names[principal] += 1
        return True


# --- outlets ---
# Which link an outbox leaves by: the one that serves its address now, or that of the principal of its pair.


class Outlets:
    """
    Gives outboxes their links. Loop-only.

    Args:
        servers: Who serves what.
        want: An address has frames and no link.
        on_room: Some outbox has another link; told in a later turn of the loop, as more may be about to change.

    Shape: `forwarder` whose outboxes they are, to be set before anything else.
    """

    forwarder: Forwarder

    def __init__(
        self, servers: Servers, *, want: Callable[[NetworkAddress], None], on_room: Callable[[], None]
    ) -> None:
        self._servers = servers
        self._want = want
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()

    @property
    def is_draining(self) -> bool:
        """Whether anything waits that a link may still take."""
        return any(outbox.held and outbox.outlet is not None for outbox in self.forwarder.table.all_outboxes())

    def replacing(self, addresses: Iterable[NetworkAddress]) -> set[NetworkAddress]:
        """Where frames for these addresses may go once nobody serves them: there again, and what leads on as well."""
        others: set[NetworkAddress] = set()
        for address in addresses:
            if self._servers.staying(address) is None:
                boxes = list(self.forwarder.table.outboxes_to(address))
                others.update(*(outbox.alternatives for outbox in boxes), [address] if boxes else [])
        return {address for address in others if self._servers.staying(address) is None}

    def fit(self, address: NetworkAddress) -> None:
        """Give what is for an address the link that serves it now; dial when there is none and frames wait."""
        link = self._servers.serving(address)
        for outbox in list(self.forwarder.table.outboxes_to(address)):
            if outbox.outlet is not link:
                outbox.outlet = link
                outbox.drain(self._loop.time())
                self._loop.call_soon(self._on_room)
            if link is None and outbox.held:
                self._want(address)

    def drain(self, link: Link) -> None:
        """The link takes more: let what waits for it leave, address by address."""
        boxes = [
            outbox
            for address in list(self._servers.addresses_of(link))
            for outbox in self.forwarder.table.outboxes_to(address)
            if outbox.held and outbox.outlet is link
        ]
        first = link.sends % len(boxes) if boxes else 0  # or one that always has more would keep the others waiting
        now = self._loop.time()
        for outbox in boxes[first:] + boxes[:first]:
            outbox.drain(now)


# --- processes ---
# Links by the process at their other end, and which two of them are one too many. Loop-only.
#
# A HELLO says what it likes, so the process is told by its `arbitration` and by what the peer has proved: whoever
# shows
# another certificate is another, and takes nothing over. Two links that differ in that because a certificate was
# renewed
# between them both stay.


_Key = tuple[bytes, str, bool]
"""Arbitration, fingerprint of the peer's certificate or "", and whether the peer opened the link."""


class Processes:
    """The links whose HELLO is complete, by their peer's `arbitration` and by who opened them."""

    def __init__(self) -> None:
        self._links: dict[_Key, dict[Link, None]] = {}

    def add(self, link: Link) -> None:
        """A link is online."""
        self._links.setdefault(_key(link, is_accept=link.is_accept), {})[link] = None

    def remove(self, link: Link) -> None:
        """A link is lost, which may have been here or not."""
        if link.agreement is None:
            return
        key = _key(link, is_accept=link.is_accept)
        links = self._links.get(key, {})
        links.pop(link, None)
        if not links:
            self._links.pop(key, None)

    def rival_of(self, link: Link) -> Link | None:
        """The link to the same process that was opened from the other side, if there is one."""
        key = _key(link, is_accept=not link.is_accept)
        if key[0] == NO_GUID:
            return None
        for other in self._links.get(key, ()):
            if other.state is LinkState.LOGGED_IN:
                return other
        return None


def _key(link: Link, *, is_accept: bool) -> _Key:
    assert link.agreement is not None
    identity = link.transport.identity
    return link.agreement.peer.arbitration, "" if identity is None else identity.fingerprint, is_accept


# --- watcher ---
# The port to whoever has to know which addresses are reached, and what their peers say of principals.


class Watcher(Protocol):
    """None of it may fail; it is never called in the middle of a pass."""

    def on_served(self, address: NetworkAddress, link: Link) -> None:
        """Frames for this address leave by this link, from now on or as before."""

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        """The address could not be reached, or its last link is of no use any more."""

    def on_answered(self, link: Link, reply: ProbeReply) -> None:
        """A PROBE_REPLY came, asked for or not."""

    def on_rejected(self, link: Link, rejected: Rejected) -> None:
        """A peer did not take a frame."""

    def on_role(self, broker_instance: bytes) -> None:
        """What this very instance is for a broker instance has changed."""


class Nobody:
    """Whoever has no mirrored pairs."""

    def on_served(self, address: NetworkAddress, link: Link) -> None:
        """Nothing follows."""

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        """Nothing follows."""

    def on_answered(self, link: Link, reply: ProbeReply) -> None:
        """Nothing follows."""

    def on_rejected(self, link: Link, rejected: Rejected) -> None:
        """Nothing follows."""

    def on_role(self, broker_instance: bytes) -> None:
        """Nothing follows."""


# --- serving ---
# Links begin to serve addresses and cease to: outboxes get their links, and whoever watches an address is told.
#
# Loop-only; used by `broker.net.peers` alone.


class Serving:
    """
    Args:
        addresses: What is known of them.
        outlets: Gives outboxes their links.
        watcher_of: Who watches now.
    """

    def __init__(self, addresses: Addresses, outlets: Outlets, watcher_of: Callable[[], Watcher]) -> None:
        self._addresses = addresses
        self._servers = addresses.servers
        self._outlets = outlets
        self._watcher_of = watcher_of

    def begin(self, link: Link, dialled: NetworkAddress | None, addresses: Iterable[NetworkAddress] = ()) -> bool:
        """From now on the link serves what it was dialled for, and these addresses; whether anything depends on it."""
        new = [] if dialled is None else [dialled]
        new += [address for address in addresses if address != dialled]
        is_changed = self.is_missed(new)
        for address in new:
            self._servers.add(link, address, is_first=address == dialled)
            self.look(address)
        return is_changed

    def end(self, link: Link, dialled: NetworkAddress | None) -> bool:
        """The link serves nothing any more, nor `dialled`, for which it was opened; whether anything depends on it."""
        addresses = self._servers.remove(link)
        if dialled is not None and dialled not in addresses:
            addresses.append(dialled)
        for address in addresses:
            self.look(address, link.reason or "the peer is draining")
        return self.is_missed(addresses)

    def look(self, address: NetworkAddress, problem: str = "") -> None:
        """
        Who serves an address may be another one now, or nobody; what is for it has that link, or none.

        To whoever watches it one that leaves is as good as gone: a principal that drains is none any more.
        """
        self._outlets.fit(address)
        link = self._servers.staying(address)
        if link is not None:
            self._watcher_of().on_served(address, link)
        else:
            self._watcher_of().on_unserved(address, self._addresses.problem_of(address) or problem)

    def is_missed(self, addresses: Iterable[NetworkAddress]) -> bool:
        """Whether anything depends on the health of one of these that nobody serves for long."""
        return any(self._servers.staying(address) is None and self._matters(address) for address in addresses)

    def _matters(self, address: NetworkAddress) -> bool:
        return self._addresses.matters(address) or address in self._outlets.forwarder.table.outboxes
