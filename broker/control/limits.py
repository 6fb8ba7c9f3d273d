"""
The settings of what one peer, and all strangers together, may take of an instance.

What single values cannot say is found by `limit_contradictions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from broker.control import value
from broker.control.handshakes import HANDSHAKES
from broker.control.section import Section
from broker.control.setting import Reload, setting

if TYPE_CHECKING:
    from broker.control.config import Settings

BYTES_MIN = 64 * 1024  # a second: what one read may bring is then paid for within four seconds
MESSAGES_MIN = 100  # a second: as above, of the smallest messages within twenty
POOL_SHARE = 50  # percent, where peers prove who they are and nothing else is configured


class LimitSettings(Section):
    """`[limits]`: what peers may take; 0 = unlimited."""

    connections: Annotated[int, value.integer(0, 1_000_000, unit="connections")] = setting(
        10_000,
        "Connections to other instances at one time; never more than file descriptors allow, with some kept for "
        "the admin API, files and those who are dialled. One that has said no HELLO makes room for the next.",
        reason="Some 16 KiB each when idle.",
        reload=Reload.LIVE,
    )
    connections_per_peer: Annotated[int, value.integer(0, 1_000_000, unit="connections")] = setting(
        1000,
        "Connections that one peer may open: one principal, or one IP address where peers prove nothing.",
        reason="An instance opens one; many may come from behind one NAT.",
        reload=Reload.LIVE,
    )
    reserved_connections: Annotated[int, value.integer(0, 100_000, unit="connections")] = setting(
        100,
        "How many of `connections` are kept for known peers: who has proved who it is, or comes from an address that a "
        "route names, that was reached by dialling, or from which somebody has proved who it is.",
        reason="However many strangers come, the neighbours of a usual gateway still find room.",
        reload=Reload.LIVE,
    )
    handshakes: Annotated[int, value.integer(1, 65_536, unit="handshakes")] = setting(
        HANDSHAKES,
        "TLS handshakes at one time with those who connect, a quarter of them with one address that is not known. When "
        "there are too many, the one that has taken the longest is ended.",
        reason="Each takes some 50 KiB and a millisecond of the processor; a peer that means it is done within "
        "milliseconds.",
        reload=Reload.LIVE,
    )
    bytes_per_second: Annotated[int, value.size(0, 1 << 40)] = setting(
        0,
        "Bytes that are read from one peer in a second. One that sends more is not read for a while, so that nothing "
        "is lost; `broker status` tells for which limit a connection is slow.",
        reason="Off: how much a neighbour is to bring nobody can guess. Less than 64KiB is refused: what one read may "
        "bring would stand still for too long.",
        reload=Reload.LIVE,
    )
    messages_per_second: Annotated[int, value.integer(0, 10_000_000, unit="messages")] = setting(
        0,
        "Dialog frames (messages, fragments, acknowledgements) that are read from one peer in a second, as "
        "`bytes_per_second`.",
        reason="Off, as above. Less than 100 is refused, for the same reason.",
        reload=Reload.LIVE,
    )
    pool_share: Annotated[int, value.integer(0, 100, unit="percent")] = setting(
        0,
        "How much of `endpoint.message_forward_size` the messages that one peer has brought may take, whatever their "
        "next hops. Near it the peer is not read for a while, as by `endpoint.backpressure`; above it its messages are "
        "dropped as for a full pool, and it still has them.",
        reason="One peer that brings messages for next hops that are gone leaves half of the room to the others. Where "
        "peers prove nothing they are known by their IP addresses, which many may share.",
        reload=Reload.LIVE,
        said=f'{POOL_SHARE} with `endpoint.authentication = "certificate"`, else 0',
    )


def with_pool_share(settings: Settings) -> Settings:
    """The same settings, with `pool_share` worked out where it was not given."""
    if "pool_share" in settings.limits.given or settings.endpoint.authentication != "certificate":
        return settings
    return settings.with_values({"limits": settings.limits.with_values({"pool_share": POOL_SHARE})})
