"""
What is on its way to mirrored pairs: one outbox each, which leads to the principal, and to nobody while none is known.

What waits stays where it is when the principal changes; only the link is another one. So its order is kept over any
number of switches, lifetimes and the bound of the pool hold all the while, and nothing waits for an address that was
the principal once. Loop-only; changed by the forwarder alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from broker.forwarding.outbox import Outbox, Want
from broker.forwarding.way import ForwardingEntry
from broker.routing.address import NetworkAddress
from broker.routing.decide import Principals
from broker.routing.route import MirroredPair

NewOutbox = Callable[[MirroredPair, Want], Outbox]
AskPrincipal = Callable[[MirroredPair], None]
"""Somebody has frames for a pair whose principal is not known; must not fail, and be quick: it may be said often."""


class MirroredOutboxes:
    """
    Shape: `outboxes` by pair, made when first asked for; `principals` where they lead, replaced whole by `lead`; `left`
    frames that left for earlier principals, by route and address, of each pair.
    """

    def __init__(self, new_outbox: NewOutbox, *, want: Callable[[NetworkAddress], None], ask: AskPrincipal) -> None:
        self.outboxes: dict[MirroredPair, Outbox] = {}
        self.principals: Principals = {}
        self.left: dict[MirroredPair, Counter[tuple[str, str]]] = {}
        self._at: dict[NetworkAddress, dict[MirroredPair, None]] = {}
        self._new_outbox = new_outbox
        self._want = want
        self._ask = ask

    def outbox(self, pair: MirroredPair) -> Outbox:
        """The outbox of a pair."""
        outbox = self.outboxes.get(pair)
        if outbox is None:
            outbox = self.outboxes[pair] = self._new_outbox(pair, partial(self._want_principal, pair))
        return outbox

    def led_to(self, address: NetworkAddress) -> Iterable[Outbox]:
        """The outboxes of those pairs whose principal is at this address."""
        pairs = self._at.get(address)
        return () if pairs is None else [self.outboxes[pair] for pair in pairs if pair in self.outboxes]

    def lead(self, changes: Mapping[MirroredPair, NetworkAddress | None], ways: Iterable[ForwardingEntry]) -> None:
        """
        From now on the principals of these pairs are here, or not known.

        Args:
            changes: By pair; each another one than before.
            ways: All there are, their frames counted up to now.
        """
        outboxes = {self.outboxes[pair]: pair for pair in changes if pair in self.outboxes}
        for way in ways:
            pair = outboxes.get(way.sink)  # type: ignore[call-overload]  # any sink may be asked for
            if pair is not None and pair in self.principals:
                self.left.setdefault(pair, Counter())[way.route, str(self.principals[pair])] += way.frames
                way.frames = 0
        principals = dict(self.principals)
        for pair, address in changes.items():
            before = principals.pop(pair, None)
            if before is not None:
                del self._at[before][pair]
                if not self._at[before]:
                    del self._at[before]
            if address is not None:
                principals[pair] = address
                self._at.setdefault(address, {})[pair] = None
        self.principals = principals
        for outbox in outboxes:
            outbox.outlet = None

    def idle(self) -> set[Outbox]:
        """Those that lead nowhere and hold nothing."""
        return {box for pair, box in self.outboxes.items() if not box.held and pair not in self.principals}

    def retire(self, idle: set[Outbox]) -> int:
        """Forget outboxes; the frames that had left through them for earlier principals."""
        gone = {pair for pair, outbox in self.outboxes.items() if outbox in idle}
        self.outboxes = {pair: outbox for pair, outbox in self.outboxes.items() if pair not in gone}
        return sum(self.left.pop(pair).total() for pair in gone & self.left.keys())

    def _want_principal(self, pair: MirroredPair) -> None:
        principal = self.principals.get(pair)
        if principal is None:
            self._ask(pair)
        else:
            self._want(principal)
