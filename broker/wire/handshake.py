"""
What two adjacent instances agree on from their HELLOs, and which of two connections between them stays.

Pure rules about two values; when a HELLO may come is for `broker.wire.connection`. Nothing is negotiated back and
forth: each side computes the agreement from the same two HELLOs, so both reach the same version, and each learns the
other's limits. A number that only affects comfort (heartbeat) is clamped; one that decides whether frames arrive at
all (`max_frame`) is refused outside its range, because a clamped one would break silently.

Source: docs/protocol.md, "Connection"; arbitration after the original's ARBITRATION login state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.errors import HandshakeRefusedError
from broker.wire.frame import Hello
from broker.wire.layout import HEARTBEAT_MS_RANGE, MAX_FRAME_RANGE, NO_GUID, PROTOCOL

PEER_NAME_MAX = 128  # characters of a peer's names that are kept; what a configuration may say
_QUOTED = 8  # characters or items of a stranger's HELLO that are repeated in an error, so that it stays one line


@dataclass(frozen=True, slots=True)
class Agreement:
    """
    What holds on a connection once both HELLOs are known.

    Shape: `version` the highest both speak; `send_max_frame` bytes, the most the peer takes; `peer_heartbeat` seconds
    of silence after which the peer sends PING; `peer` its HELLO as received; `is_self` when the peer says that it is
    this very process, or another one of the same instance; anybody who has seen our HELLO can.
    """

    version: int
    send_max_frame: int
    peer_heartbeat: float
    peer: Hello
    is_self: bool

    def abridged(self) -> Agreement:
        """The same with what stays of interest once the peer's addresses are known: no lists, and short names."""
        peer = self.peer
        kept = Hello(
            protocol=peer.protocol,
            versions=(self.version,),
            instance=peer.instance,
            arbitration=peer.arbitration,
            name=peer.name[:PEER_NAME_MAX],
            software=peer.software[:PEER_NAME_MAX],
            max_frame=peer.max_frame,
            heartbeat_ms=peer.heartbeat_ms,
        )
        return replace(self, peer=kept)


def agree(own: Hello, peer: Hello) -> Agreement:
    """
    Agree on what both HELLOs allow.

    Raises:
        HandshakeRefusedError: another protocol, no version in common, or a `max_frame` outside 4 KiB .. 16 MiB.
    """
    if peer.protocol != PROTOCOL:
        raise HandshakeRefusedError(f"the peer speaks {peer.protocol[:_QUOTED]!r}, not {PROTOCOL!r}")
    common = set(own.versions) & set(peer.versions)
    if not common:
        raise HandshakeRefusedError(
            f"no version in common: the peer speaks {_render(peer.versions)}, this instance {_render(own.versions)}"
        )
    smallest, largest = MAX_FRAME_RANGE
    if not smallest <= peer.max_frame <= largest:
        raise HandshakeRefusedError(f"max_frame of {peer.max_frame} bytes, not {smallest} .. {largest}")
    shortest, longest = HEARTBEAT_MS_RANGE
    return Agreement(
        version=max(common),
        send_max_frame=peer.max_frame,
        peer_heartbeat=min(max(peer.heartbeat_ms, shortest), longest) / 1000,
        peer=peer,
        # Another process of this instance decides by the same routes: to send there is to go round in a circle.
        is_self=peer.arbitration == own.arbitration != NO_GUID or peer.instance == own.instance != NO_GUID,
    )


def stays(own_arbitration: bytes, peer_arbitration: bytes, *, opened_here: bool) -> bool:
    """
    Whether a connection stays when the same pair has another one that the other side opened.

    The one opened by the side with the lower arbitration id stays, so both sides keep the same one. Two equal ids
    are one process connected to itself (`Agreement.is_self`): there is nothing to arbitrate.

    Shape: arbitration ids of 16 bytes, compared as unsigned big-endian numbers.
    """
    return opened_here == (own_arbitration < peer_arbitration)


def _render(versions: tuple[int, ...]) -> str:
    listed = ", ".join(str(version) for version in versions[:_QUOTED]) or "none"
    return f"{listed}, ..." if len(versions) > _QUOTED else listed
