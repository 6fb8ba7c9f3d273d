"""A link with its played socket, its owner and its forwarder, and the frames that a test sends through it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.net.link import Link, LinkState
from broker.net.transport import PlainTransport
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Hello, LinkMessage, Ping, decode_link, encode_dialog, encode_link
from broker.protocol.link_state import Event, LinkStateMachine
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.forwarding import PLAIN
from tests.support.played import PlayedLoop, PlayedSocket

MAX_FRAME = 8192
HANDSHAKE = 4.0
OWN = Hello(arbitration=b"o" * 16, max_frame=MAX_FRAME, heartbeat_ms=2000)
PEER = Hello(arbitration=b"p" * 16, name="peer", heartbeat_ms=2000)
HELLO = encode_link(PEER)
PING = encode_link(Ping(b"12345678"))
HERE, FAR = b"h" * 16, NetworkAddress("far")
ROUTES = (Route("Far", FAR, remote_service_name="//far"), Route("Here", LOCAL, remote_service_name="//here"))


class LinkEnds:
    """A link and all it touches; `told` is what its owner heard, in order, `heard` how often it was read."""

    def __init__(self, loop: PlayedLoop) -> None:
        self.loop = loop
        self.delivered: list[bytes] = []
        self.told: list[object] = []
        self.heard = 0
        self.sock = PlayedSocket(loop)
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=MAX_FRAME, max_hops=16),
            deliver=lambda _, frames, __: self.delivered.extend(frames),
            request_link=lambda _: None,
            health_of=lambda _: AddressHealth.UNTRIED,
        )
        self.forwarder.set_routing(
            table=build_table(ROUTES, now=datetime.now(UTC)),
            hosted=hosted({HERE: ["//here"]}),
            is_forwarding=True,
        )
        connection = LinkStateMachine(OWN, now=loop.time(), handshake_timeout=HANDSHAKE)
        sock: Any = self.sock
        self.link = Link(
            PlainTransport(sock),
            "tcp://peer:1",
            is_accept=True,
            connection=connection,
            forwarder=self.forwarder,
            handler=self,
        )

    def start(self, *, room: int = 1 << 30) -> None:
        self.sock.room = room
        self.link.start()

    def go_online(self, **hello: Any) -> None:
        self.start()
        self.sock.feed(encode_link(msgspec.structs.replace(PEER, **hello)))
        assert self.link.state is LinkState.LOGGED_IN
        self.sock.written = b""
        self.told.clear()

    def said(self) -> list[LinkMessage]:
        """The link frames that were written whole."""
        return [decode_link(frame) for frame in FrameDecoder(MAX_FRAME).feed(self.sock.written) if frame[4] < 0x10]

    def on_online(self, link: Link) -> None:
        self.told.append("online")

    def on_writable(self, link: Link) -> None:
        self.told.append("writable")

    def on_first_read(self, link: Link) -> None:
        self.heard += 1

    def on_event(self, link: Link, event: Event) -> None:
        self.told.append(event)

    def on_eof(self, link: Link) -> None:
        link.close_after_eof()

    def on_bug(self, link: Link, error: Exception) -> None:
        raise error

    def on_lost(self, link: Link) -> None:
        self.told.append("lost")

    def on_closed(self, link: Link) -> None:
        self.told.append("closed")


def message(body: bytes = b"body", **fields: Any) -> bytes:
    return encode_dialog(replace(PLAIN, **{"to_service": "//here", **fields}), body)
