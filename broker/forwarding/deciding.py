"""
Which way a frame from outside takes: the routing decision, as the kernel asks for it and as what waits does.

A decision is by routes and health as they are now. What the kernel may remember of it is a little less: a dialog that
has frames waiting here for one of its candidates takes that one, until they have left or moved, so that it stays in
order and a second copy is found where the first one is. Loop-only.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.forwarding.places import DialogAffinity, key_of
from broker.forwarding.way import ForwardingEntry, Report
from broker.forwarding.ways import ForwardingTable
from broker.protocol.layout import CONVERSATION_AT, GUID_BYTES, HEADER_BYTES, NO_GUID, ROUTE_KEY_AT, TO_SERVICE_AT, Flag
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Decision, HealthOf, Hosted, RoutingContext, RoutingFacts, decide
from broker.routing.table import RouteTable

PASSED_MAX = 10_000  # flows remembered for plans of new routes; some 3 MB

Ask = Callable[[RoutingFacts], None]
"""A frame that arrived has no route and msdb's table says whom to ask for one (R2.4); must not fail."""

_FROM_TARGET = int(Flag.FROM_TARGET)


def want_better(decision: Decision, outbox: Callable[[NetworkAddress], Outbox]) -> None:
    """Where the best next hop is about to leave, ask for links to those not tried yet; it is used until then."""
    if decision.candidates and decision.candidates[0].health is AddressHealth.LEAVING:
        for candidate in decision.candidates:
            if candidate.health is AddressHealth.UNTRIED:
                outbox(candidate.address).want_link()


class Decider:
    """
    Shape: `here` what incoming frames are decided by, swapped whole; `passed` what passed or arrived lately, at most
    `PASSED_MAX`, the latest at the end; `ask` as `Ask`; `is_bound` whether the kernel has been told of a way that holds
    only while others of its dialog wait: it has to forget that now and then.
    """

    def __init__(
        self, ways: ForwardingTable, places: DialogAffinity, *, health_of: HealthOf, ask: Ask, report: Report
    ) -> None:
        self.here = RoutingContext(RouteTable(), Hosted(), health_of, is_forwarding=False)
        self.passed: dict[RoutingFacts, None] = {}
        self._ways = ways
        self._places = places
        self.ask = ask
        self.is_bound = False
        self._report = report

    def resolve(
        self,
        key: bytes,
        conversation: bytes,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - the kernel's callback has no names
    ) -> tuple[ForwardingEntry, bool | None]:
        """As `careful.Resolve`: the way of a frame, behind those of its dialog that wait here."""
        try:
            way, decision = self._decide(key, conversation, kind, is_from_target)
        except Exception as error:  # noqa: BLE001 - the frames behind this one are somebody else's
            self._report(None, error)
            return self._ways.drop(Disposition.ROUTE_INVALID, kind), False
        if decision.disposition is Disposition.ASKING_FOR_ROUTE:
            return way, None  # whoever asks has to hear that somebody still wants it: an answer of "none" wears off
        if len(decision.candidates) > 1 and self._places:
            queue = self._places.where(key_of(key, conversation, is_from_target=is_from_target))
            if isinstance(queue, Outbox) and queue is not way.sink:
                for candidate in decision.candidates:
                    if candidate.address == queue.address:
                        self.is_bound = True
                        return self._ways.of(decision, kind, candidate.address), True
        return way, decision.is_by_conversation

    def way_now(self, frame: bytes) -> ForwardingEntry:
        """By routes and health alone, wherever the rest of its dialog waits."""
        key_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
        conversation = frame[CONVERSATION_AT : CONVERSATION_AT + GUID_BYTES]
        return self._decide(frame[ROUTE_KEY_AT:key_end], conversation, frame[4], bool(frame[5] & _FROM_TARGET))[0]

    def _decide(
        self,
        key: bytes,
        conversation: bytes,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - as `resolve`
    ) -> tuple[ForwardingEntry, Decision]:
        try:
            to_service = key[HEADER_BYTES - ROUTE_KEY_AT :].decode()
        except UnicodeDecodeError:
            return self._ways.drop(Disposition.MALFORMED, kind), Decision(Disposition.MALFORMED, 0)
        facts = RoutingFacts(to_service, key[:GUID_BYTES], conversation, is_from_target=is_from_target)
        decision = decide(facts, self.here)
        if decision.disposition is Disposition.ASKING_FOR_ROUTE:
            self.ask(facts)
        self._note(facts if decision.is_by_conversation else replace(facts, conversation_id=NO_GUID))
        way = self._ways.of(decision, kind)
        want_better(decision, self._ways.outbox)
        addresses = {candidate.address for candidate in decision.candidates}
        for address in addresses & self._ways.outboxes.keys() if len(addresses) > 1 else ():
            self._ways.outboxes[address].alternatives |= addresses - {address}
        return way, decision

    def _note(self, facts: RoutingFacts) -> None:
        """Remember what passes, the latest at the end."""
        self.passed.pop(facts, None)
        self.passed[facts] = None
        if len(self.passed) > PASSED_MAX:
            del self.passed[next(iter(self.passed))]
