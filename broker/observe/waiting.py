"""
Why a frame is held here, as the sentence a person reads: `why_held`; why a dialog waits is told by `dialog.status`.

Loop-only; decides nothing and changes nothing.
"""

from __future__ import annotations

from broker.dialog.status import Trouble, connecting
from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.net.peers import Peers
from broker.routing.route import MirroredPair


def why_held(outbox: Outbox, peers: Peers) -> str:
    """What the frames that wait for one address, or for a mirrored pair, wait for, and how much waits there."""
    if isinstance(outbox.address, MirroredPair):
        disposition = Disposition.PRINCIPAL_UNKNOWN
        why = f"{disposition} ({disposition.number}): neither {outbox.address} has said that it is"
    elif outbox.outlet is None:
        why = connecting(outbox.address, Trouble(peers.problem_of(outbox.address)))
    else:
        why = f"the connection to {outbox.address} takes no more at the moment"
    share = outbox.share
    room = ", no room for more" if share.is_full else ""
    return f"{why}; {share.used_bytes} of at most {share.limit_bytes} bytes wait for it{room}"
