"""
The table of peers: which link serves which network address.

An address is served by the link dialled for it, or, without one, by the oldest open link whose peer announced it. This
determines the health that routing sees (connected, leaving, untried, suppressed) and the link on which each outbox
sends. Health is computed when asked, never stored, so it cannot disagree with the links. Cached routing decisions
depend only on addresses whose health was asked for: an unknown peer that announces others invalidates nothing.

Peers announce what they choose, so work per link is bounded by its own addresses, and every memory has a limit.
Loop-only; changed by `broker.net.peers` and `broker.net.dialer` alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

import structlog

from broker.forwarding.forwarder import Forwarder
from broker.net.link import Link, LinkState
from broker.net.mirrors import Mirrors
from broker.net.tls import Identity
from broker.protocol.layout import ADDRESSES_MAX, NO_GUID
from broker.protocol.link_state import Agreement
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.decide import AddressHealth

BACKOFF_FIRST = 0.2  # seconds
BACKOFF_CAP = 10.0  # seconds; R6.3 has mirrored pairs asked that often
SPREAD = 0.5  # of a wait, at most, is taken off by chance
ASKED_MAX = 10_000  # addresses that routing is known to depend on; above it, it depends on all
HISTORIES_MAX = 10_000  # addresses remembered: with ADDRESS 'TRANSPORT' a peer may invent them
PEER_NAMES_MAX = 1000  # names of peers in metrics, each of which is a series that the scraper keeps
NAMES_EACH_MAX = 64  # of one principal: instances may share a certificate
OTHER_PEERS = "other"

log = structlog.get_logger(__name__)


class DialQueue(IntEnum):
    """Which of three dial limits an address counts against, the better the higher."""

    INVENTED = 0  # no route names it, or a link serves it already
    NAMED = 1
    PROBED = 2  # a mirrored pair is asked there for its principal


@dataclass(slots=True)
class DialHistory:
    """
    What is remembered of one address.

    Attributes:
        failures: In a row.
        suppressed_until: Loop time.
        problem: Of the last failure, empty when there was none since a success.
        is_dialling: From the request until there is a link or a failure.
        queue: It waits in, None once it is being dialled.
        principal: Of the peer that answered last; empty while none has, or where peers prove nothing.
    """

    failures: int = 0
    suppressed_until: float = 0.0
    problem: str = ""
    is_dialling: bool = False
    queue: DialQueue | None = None
    principal: str = ""
    _doublings: int = 0

    def record_failure(self, problem: str, now: float, jitter: Callable[[], float] = random.random) -> float:
        """Suppress the address; returns the seconds to the next attempt. `jitter` gives 0 to 1."""
        if now > self.suppressed_until + 2 * BACKOFF_CAP:  # an attempt itself may take some time
            self._doublings = 0
        wait = min(BACKOFF_CAP, BACKOFF_FIRST * 2.0**self._doublings) * (1.0 - SPREAD * jitter())
        self._doublings = min(self._doublings + 1, 16)
        self.failures += 1
        self.problem = problem
        self.suppressed_until = now + wait
        return wait

    def record_success(self) -> None:
        """The address answered: earlier failures no longer count."""
        self.failures = self._doublings = 0
        self.suppressed_until = 0.0
        self.problem = ""


class PeerTable:
    """
    Links by address, and what dialling an address has taught.

    Attributes:
        histories: Of addresses that were dialled.
    """

    def __init__(self) -> None:
        self.histories: dict[NetworkAddress, DialHistory] = {}
        self._addresses: dict[Link, dict[NetworkAddress, None]] = {}
        self._links: dict[NetworkAddress, dict[Link, None]] = {}  # in the order in which they are preferred
        self._asked: set[NetworkAddress] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def known_addresses(self) -> set[NetworkAddress]:
        """Every address that was dialled or is served."""
        return self.histories.keys() | self._links.keys()

    def link_for(self, address: NetworkAddress) -> Link | None:
        """The link that frames for this address leave by; one whose peer is leaving where there is no other."""
        leaving = None
        for link in self._links.get(address, ()):
            if link.state is LinkState.LOGGED_IN:
                if not link.is_peer_draining:
                    return link
                leaving = leaving or link
        return leaving

    def lasting_link_for(self, address: NetworkAddress) -> Link | None:
        """The same without links whose peers are leaving."""
        link = self.link_for(address)
        return None if link is None or link.is_peer_draining else link

    def addresses_of(self, link: Link) -> Iterable[NetworkAddress]:
        """Return the addresses that a link may serve."""
        return self._addresses.get(link, ())

    def addresses_served_by(self, link: Link) -> list[NetworkAddress]:
        """The addresses whose frames leave by this link."""
        return [address for address in self.addresses_of(link) if self.link_for(address) is link]

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        """Whether an address is served, and for how long, was not tried, or did not answer lately."""
        link = self.link_for(address)
        if link is not None:
            return AddressHealth.LEAVING if link.is_peer_draining else AddressHealth.CONNECTED
        history = self.histories.get(address)
        is_suppressed = history is not None and self._loop.time() < history.suppressed_until
        return AddressHealth.SUPPRESSED if is_suppressed else AddressHealth.UNTRIED

    def health_for_routing(self, address: NetworkAddress) -> AddressHealth:
        """The same, and remember that a routing decision depends on it."""
        if len(self._asked) < ASKED_MAX:
            self._asked.add(address)
        return self.health_of(address)

    def affects_routing(self, address: NetworkAddress) -> bool:
        """Whether a decision since `forget_asked` depends on the health of this address."""
        return address in self._asked or len(self._asked) >= ASKED_MAX

    def forget_asked(self) -> None:
        """All decisions are made again."""
        self._asked.clear()

    def problem_of(self, address: NetworkAddress) -> str:
        """Why an address is not reached: its last attempt failed, or its link was lost; empty when all is well."""
        history = self.histories.get(address)
        return "" if history is None or self.lasting_link_for(address) is not None else history.problem

    def principal_at(self, address: NetworkAddress) -> str:
        """The principal that answered when an address was dialled; empty when that is not known."""
        history = self.histories.get(address)
        return "" if history is None else history.principal

    def add(self, link: Link, address: NetworkAddress, *, is_dialled: bool) -> None:
        """From now on a link serves an address, before all others when it was dialled for it."""
        self._addresses.setdefault(link, {})[address] = None
        links = self._links.setdefault(address, {})
        if is_dialled and link not in links:
            self._links[address] = {link: None, **links}
        else:
            links[link] = None

    def expel(self, address: NetworkAddress, principal: str) -> None:
        """Stop links of peers that have proved to be another principal from serving an address."""
        for link in list(self._links.get(address, ())):
            if link.principal not in {"", principal}:
                del self._links[address][link]
                del self._addresses[link][address]

    def remove(self, link: Link) -> list[NetworkAddress]:
        """Remove a link, which no longer serves any address; return the addresses that it served."""
        addresses = list(self._addresses.pop(link, ()))
        for address in addresses:
            links = self._links[address]
            del links[link]
            if not links:
                del self._links[address]  # no announcement of unknown peers may stay
        return addresses

    def suppress(self, address: NetworkAddress, problem: str) -> None:
        """An attempt has failed, or the link was lost: do not try again for a while. A repeated problem is a detail."""
        history = self.histories[address]
        is_known = problem == history.problem
        seconds = round(history.record_failure(problem, self._loop.time()), 3)
        (log.debug if is_known else log.info)(
            "address suppressed", address=str(address), reason=problem, seconds=seconds
        )

    def prune(self, now: float) -> None:
        """Above `HISTORIES_MAX`, forget addresses that are not dialled, suppressed or served."""
        if len(self.histories) > HISTORIES_MAX:
            self.histories = {
                address: history
                for address, history in self.histories.items()
                if history.is_dialling or now < history.suppressed_until or self.link_for(address) is not None
            }


class OutboxBinder:
    """
    Gives each outbox the link of its address and notifies the mirrored pairs.

    Args:
        table: Which link serves which address.
        forwarder: Has the outboxes.
        mirrors: Learn which addresses are served.
        request_link: An address has frames and no link.
        on_capacity: An outbox has another link; called in a later iteration, as more may be about to change.
    """

    def __init__(
        self,
        table: PeerTable,
        forwarder: Forwarder,
        mirrors: Mirrors,
        *,
        request_link: Callable[[NetworkAddress], None],
        on_capacity: Callable[[], None],
    ) -> None:
        self._table = table
        self._forwarder = forwarder
        self._mirrors = mirrors
        self._request_link = request_link
        self._on_capacity = on_capacity
        self._loop = asyncio.get_running_loop()

    @property
    def has_pending(self) -> bool:
        """Whether anything is held that a link may still accept."""
        return any(outbox.held and outbox.outlet is not None for outbox in self._forwarder.table.all_outboxes())

    def serve(self, link: Link, dialled: NetworkAddress | None, announced: Iterable[NetworkAddress] = ()) -> bool:
        """A link serves what it was dialled for, and these addresses; returns whether routing depends on the change."""
        new = [] if dialled is None else [dialled]
        new += [address for address in announced if address != dialled]
        is_changed = self.is_missed(new)
        for address in new:
            self._table.add(link, address, is_dialled=address == dialled)
            self.rebind(address)
        return is_changed

    def stop_serving(self, link: Link, dialled: NetworkAddress | None) -> bool:
        """Remove a link from its addresses and the one it was dialled for; return whether routing depends on them."""
        addresses = self._table.remove(link)
        if dialled is not None and dialled not in addresses:
            addresses.append(dialled)
        for address in addresses:
            self.rebind(address, link.reason or "the peer is draining")
        return self.is_missed(addresses)

    def rebind(self, address: NetworkAddress, problem: str = "") -> None:
        """Notify outboxes and mirrored pairs of the link of an address, or of none; `problem` is the default reason."""
        self.bind_outboxes(address)
        link = self._table.lasting_link_for(address)
        if link is not None:
            self._mirrors.on_served(address, link)
        else:
            self._mirrors.on_unserved(address, self._table.problem_of(address) or problem)

    def bind_outboxes(self, address: NetworkAddress) -> None:
        """Give the outboxes of an address the link that serves it; request one when there is none and frames wait."""
        link = self._table.link_for(address)
        for outbox in list(self._forwarder.table.outboxes_to(address)):
            if outbox.outlet is not link:
                outbox.outlet = link
                outbox.drain(self._loop.time())
                self._loop.call_soon(self._on_capacity)
            if link is None and outbox.held:
                self._request_link(address)

    def flush(self, link: Link) -> None:
        """Send the frames that wait for a link that accepts more, outbox by outbox."""
        outboxes = [
            outbox
            for address in list(self._table.addresses_of(link))
            for outbox in self._forwarder.table.outboxes_to(address)
            if outbox.held and outbox.outlet is link
        ]
        first = link.sends % len(outboxes) if outboxes else 0  # or one that always has more would starve the others
        now = self._loop.time()
        for outbox in outboxes[first:] + outboxes[:first]:
            outbox.drain(now)

    def alternatives_to(self, addresses: Iterable[NetworkAddress]) -> set[NetworkAddress]:
        """Where frames for these addresses may go once their link is gone: there again, and what else leads on."""
        others: set[NetworkAddress] = set()
        alternatives = self._forwarder.table.alternatives()
        for address in addresses:
            if self._table.lasting_link_for(address) is None and any(self._forwarder.table.outboxes_to(address)):
                others |= {address, *alternatives.get(address, ())}
        return {address for address in others if self._table.lasting_link_for(address) is None}

    def is_missed(self, addresses: Iterable[NetworkAddress]) -> bool:
        """Whether routing depends on one of these that no lasting link serves."""
        return any(
            self._table.lasting_link_for(address) is None
            and (self._table.affects_routing(address) or address in self._forwarder.table.outboxes)
            for address in addresses
        )


# --- who the peers are ---


def announced_addresses(
    agreement: Agreement, identity: Identity | None = None, *, is_authenticating: bool = False
) -> frozenset[NetworkAddress]:
    """
    The addresses that a peer announced in its HELLO: of the first `ADDRESSES_MAX`, those that are addresses.

    Args:
        agreement: The agreement, with the peer's HELLO.
        identity: The identity in the peer's certificate; None when it has shown none.
        is_authenticating: Accept only hosts that the certificate covers.
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


_ProcessKey = tuple[bytes, str, bool]
"""Arbitration, principal of the peer's certificate or "", and whether the peer opened the link."""


class LinksByProcess:
    """
    Finds two links to one process that were opened from both sides.

    A HELLO says what it likes, so a process is its `arbitration` and the principal that the peer has proved: another
    principal is another process, and takes nothing over. A certificate may be renewed between the two links: both ends
    have to find the same two, or one closes what the other dials again and again.
    """

    def __init__(self) -> None:
        self._links: dict[_ProcessKey, dict[Link, None]] = {}

    def add(self, link: Link) -> None:
        """A link is online."""
        self._links.setdefault(_process_key(link, is_accept=link.is_accept), {})[link] = None

    def remove(self, link: Link) -> None:
        """A link is lost; it may not be here."""
        if link.agreement is None:
            return
        key = _process_key(link, is_accept=link.is_accept)
        links = self._links.get(key, {})
        links.pop(link, None)
        if not links:
            self._links.pop(key, None)

    def duplicate_of(self, link: Link) -> Link | None:
        """The open link to the same process that was opened from the other side."""
        key = _process_key(link, is_accept=not link.is_accept)
        if key[0] == NO_GUID:
            return None
        return next((other for other in self._links.get(key, ()) if other.state is LinkState.LOGGED_IN), None)


def _process_key(link: Link, *, is_accept: bool) -> _ProcessKey:
    assert link.agreement is not None
    return link.agreement.peer.arbitration, link.principal, is_accept


class PeerFrameCounts:
    """
    Dialog frames by peer name and kind, closed links included; the label of each link in metrics.

    Peers choose their names. A name belongs to the principal that came with it first, so a peer cannot use up the names
    of others, nor be counted as one of them. Where peers prove nothing, only the bound on all of them holds.
    """

    def __init__(self) -> None:
        self._closed: dict[str, Counter[int]] = {}
        self._principals: dict[str, str] = {}  # by name; empty where none was proved
        self._names: Counter[str] = Counter()  # how many each principal has

    def totals(self, links: Iterable[Link]) -> dict[str, dict[int, int]]:
        """Of closed links, and of these, which are open. Cost: 1 us for each name and each link."""
        received = {label: dict(counts) for label, counts in self._closed.items()}  # a copy as a counter takes 3 us
        for link in links:
            if link.label:
                counts = received.setdefault(link.label, {})
                for kind, frames in link.received.items():
                    counts[kind] = counts.get(kind, 0) + frames
        return received

    def open(self, link: Link) -> None:
        """A link is online: give it its label."""
        link.label = link.peer_name if self._claim(link.peer_name, link.principal) else OTHER_PEERS
        self._closed.setdefault(link.label, Counter())

    def close(self, link: Link) -> None:
        """A link is closed: keep what it counted."""
        if link.label and link.received:
            self._closed[link.label].update(link.received)

    def _claim(self, name: str, principal: str) -> bool:
        """Give a name to a principal; one that was proved takes it over from peers that prove none."""
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
