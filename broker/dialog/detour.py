"""
Other ways than the best one, for frames that got no answer along it, or that will get none.

A next hop can be connected and lead nowhere: a gateway that has lost its own next hop, or one of several targets that
is not the one a dialog is bound to. Only the lack of an acknowledgement shows it, and only at the sender.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.decide import Decision

FINAL = frozenset(  # why the next hop refused a frame that it will refuse again, whatever it says of retrying
    disposition.number
    for disposition in (
        Disposition.MALFORMED,
        Disposition.HOPS_EXHAUSTED,
        Disposition.FORWARDING_DISABLED,
        Disposition.ROUTE_INVALID,
        Disposition.FRAME_TOO_LARGE,
    )
)


def alternatives(decision: Decision) -> list[Decision]:
    """
    The decision once for each address that is not suppressed, each in front once; the order goes round.

    Shape: at least one; the first is the decision itself.
    """
    usable = [candidate for candidate in decision.candidates if candidate.health is not Health.SUPPRESSED]
    rest = [candidate for candidate in decision.candidates if candidate.health is Health.SUPPRESSED]
    turned = [(*usable[start:], *usable[:start], *rest) for start in range(1, len(usable))]
    return [decision, *(replace(decision, candidates=those, route=those[0].route) for those in turned)]


def detour(decision: Decision, outbox: Callable[[NetworkAddress], Outbox]) -> Decision:
    """
    The decision with the next address that is as good as the best one in front; the same when there is none.

    Asked again and again, each of those has its turn. For an address that was not tried a link is asked for, and not
    waited for: when nobody answers there, finding out takes longer than the next resend.
    """
    for candidate in decision.candidates:
        if candidate.health is Health.UNTRIED:
            outbox(candidate.address).want_link()
    for other in alternatives(decision)[1:]:
        if other.candidates[0].health is decision.candidates[0].health:
            return other
    return decision
