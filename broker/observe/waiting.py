"""
Why something waits, as the sentence a person reads: `transmission_status` of a message, `why_held` of a frame.

Never empty. The original leaves its status blank both for "not tried yet" and for "sent, not acknowledged", and its
users cannot tell one from the other; here each says what is waited for. Loop-only; decides nothing and changes nothing.
"""

from __future__ import annotations

from broker.dialog.inquirer import Inquirer
from broker.dialog.transmitter import Sender, Transmitter
from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.net.peers import Peers
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision
from broker.routing.route import MirroredPair


def transmission_status(
    sender: Sender, transmitter: Transmitter, peers: Peers, *, now: float, inquirer: Inquirer | None = None
) -> str:
    """What the messages of a dialog wait for. Shape: `now` monotonic seconds; `inquirer` of the same database."""
    decision = transmitter.decide(sender.contact)
    problem = _path_problem(decision, peers)
    if decision.disposition is Disposition.ASKING_FOR_ROUTE and decision.route is not None and inquirer is not None:
        problem = (
            f"delayed, {decision.disposition} ({decision.disposition.number}) by {decision.route.name}"
            f" to {decision.route.address_text}: {inquirer.status(sender.contact.far_service)}"
        )
    if problem is None and sender.outbound.in_flight:
        outbound = sender.outbound
        status = f"sent, {outbound.in_flight} in flight, waiting for acknowledgement{_resend(sender, now)}"
    elif problem is None:
        status = f"waiting for its turn{_attempt(sender)}"
    else:
        status = f"{problem}{_attempt(sender)}"
    return f"{status}; the next hop refused the last one: {sender.advice}" if sender.advice else status


def why_held(outbox: Outbox, peers: Peers) -> str:
    """What the frames that wait for one address, or for a mirrored pair, wait for, and how much waits there."""
    if isinstance(outbox.address, MirroredPair):
        disposition = Disposition.PRINCIPAL_UNKNOWN
        why = f"{disposition} ({disposition.number}): neither {outbox.address} has said that it is"
    elif outbox.outlet is None:
        why = _connecting(outbox.address, peers)
    else:
        why = f"the connection to {outbox.address} takes no more at the moment"
    share = outbox.share
    room = ", no room for more" if share.bottleneck is not None else ""
    return f"{why}; {share.used_bytes} of at most {share.limit_bytes} bytes wait for it{room}"


def _path_problem(decision: Decision, peers: Peers) -> str | None:
    """What keeps a frame with this decision from leaving now; None when nothing does."""
    if decision.disposition is Disposition.DELIVERED:
        return None
    if decision.disposition is not Disposition.FORWARDED:
        number = decision.disposition.number
        return f"delayed, {decision.disposition} ({number}); matched again when routes or services change"
    address = decision.candidates[0].address
    outbox = peers.forwarder.outboxes.get(address)
    if outbox is None or outbox.outlet is None:
        return _connecting(address, peers)
    return None if outbox.is_ready else f"waiting for room on the connection to {address}"


def _connecting(address: NetworkAddress, peers: Peers) -> str:
    problem = peers.problem_of(address)
    return f"waiting for connection to {address}" + (f" ({problem})" if problem else "")


def _resend(sender: Sender, now: float) -> str:
    wait = max(0.0, sender.outbound.resend_at - now)
    return f", next resend in {wait:.1f} s{_attempt(sender)}"


def _attempt(sender: Sender) -> str:
    """Which attempt is under way, from the second on."""
    attempts = sender.outbound.attempts
    return f", attempt {attempts + 1}" if attempts else ""
