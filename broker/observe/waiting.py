"""
Why a frame is held here, as the sentence a person reads: `why_held`; why a dialog waits is told by `dialog.status`.

Loop-only; decides nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
import time

from broker.dialog.status import Trouble, connecting, unknown_principal
from broker.flow import Disposition
from broker.forwarding.outbox import Outbox
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair


def why_held(outbox: Outbox, peers: Peers, mirrors: Mirrors) -> str:
    """What the frames that wait for one address, or for a mirrored pair, wait for, and how much waits there."""
    address = next_hop(outbox, mirrors)
    if isinstance(address, MirroredPair):
        disposition = Disposition.PRINCIPAL_UNKNOWN
        wall_offset = time.time() - asyncio.get_running_loop().time()
        why = f"{disposition} ({disposition.number}): {unknown_principal(mirrors.trouble_of(address), wall_offset)}"
    elif outbox.outlet is None:
        why = connecting(address, Trouble(peers.problem_of(address)))
    else:
        why = f"the connection to {address} takes no more at the moment"
    share = outbox.share
    room = ", no room for more" if share.is_full else ""
    return f"{why}; {share.used_bytes} of at most {share.limit_bytes} bytes wait for it{room}"


def next_hop(outbox: Outbox, mirrors: Mirrors) -> NetworkAddress | MirroredPair:
    """Where an outbox leads now: of a pair its principal, or the pair itself while that is not known."""
    if isinstance(outbox.address, NetworkAddress):
        return outbox.address
    return mirrors.principal_of(outbox.address) or outbox.address
