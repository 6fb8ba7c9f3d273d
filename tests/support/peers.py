"""Peers on played sockets: a test plays every neighbour, says who can be reached, and lets virtual time pass."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from broker.config.settings import EndpointSettings, Settings
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.net import dialer as module
from broker.net.link import Link
from broker.net.peers import Peers
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import (
    Hello,
    LinkMessage,
    Probe,
    ProbeReply,
    Rejected,
    decode_link,
    encode_dialog,
    encode_link,
)
from broker.routing.address import TRANSPORT, NetworkAddress
from broker.routing.decide import Hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support import forwarding
from tests.support.played import PlayedLoop, PlayedSocket

OWN = Hello(arbitration=b"o" * 16, max_frame=8192, heartbeat_ms=15_000)
PEER = Hello(arbitration=b"p" * 16, name="peer", heartbeat_ms=15_000)
LOWER, HIGHER = b"a" * 16, b"z" * 16  # arbitration ids on either side of our own
NORTH, SOUTH = NetworkAddress("10.0.0.1"), NetworkAddress("10.0.0.2")
PLAIN = replace(forwarding.PLAIN, to_service=f"{NORTH}/x")


class Neighbourhood:
    """
    Peers, their forwarder and the sockets to play on.

    Shape: `reachable` addresses that answer when dialled; `dialled` what was tried, with the time; `socks` of the
    links by number; `rooms` counts what dialogs were told; `role` that is answered to a PROBE.
    """

    def __init__(self, loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch, **hello: Any) -> None:
        self.loop = loop
        self.reachable: set[NetworkAddress] = set()
        self.dialled: list[tuple[NetworkAddress, float]] = []
        self.socks: list[PlayedSocket] = []
        self.rejected: list[Rejected] = []
        self.rooms = 0
        self.role = "unknown"
        self.peers = Peers(
            msgspec.structs.replace(OWN, **hello),
            Settings(endpoint=EndpointSettings(handshake_timeout=10.0, connect_timeout=5.0)),
            on_rejected=lambda _, rejected: self.rejected.append(rejected),
            make_forwarder=partial(
                Forwarder, Limits(pool_bytes=1 << 20, max_frame=8192, max_hops=16), deliver=lambda *_: None
            ),
            answer_probe=self._answer_probe,
            on_capacity=self._on_room,
            jitter=lambda: 0.0,
        )
        self.forwarder = self.peers.forwarder
        table = build_table([Route("Transport", TRANSPORT)], now=datetime.now(UTC))
        self.forwarder.set_routing(table=table, hosted=Hosted(), is_forwarding=True)
        monkeypatch.setattr(module, "connect", self._connect)
        self.peers.start()

    @property
    def links(self) -> list[Link]:
        return list(self.peers.links.values())

    def accept(self, **hello: Any) -> PlayedSocket:
        """A neighbour dials us and says HELLO."""
        sock = self._socket()
        self.peers.accept(sock, "tcp://10.9.9.9:40000")  # type: ignore[arg-type]
        if hello.pop("is_greeting", True):
            self.greet(sock, **hello)
        return sock

    def greet(self, sock: PlayedSocket, **hello: Any) -> None:
        """The neighbour says HELLO."""
        sock.feed(encode_link(msgspec.structs.replace(PEER, **hello)))

    def send(self, address: NetworkAddress, number: int = 1, **fields: Any) -> bytes:
        """A frame for this address comes in; as it will leave."""
        own: dict[str, Any] = {"to_service": f"{address}/x", "sequence_number": number}
        header = replace(PLAIN, **(own | fields))
        frame = encode_dialog(header, b"body")
        self.forwarder.slab[: len(frame)] = frame
        self.forwarder.forward(self.forwarder.slab, len(frame), self.loop.time(), forwarding.Sender())
        return encode_dialog(replace(header, hop_count=1), b"body")

    def _on_room(self) -> None:
        self.rooms += 1

    def _answer_probe(self, probe: Probe) -> ProbeReply:
        return msgspec.structs.replace(answer_unknown(probe), role=self.role)

    async def _connect(self, address: NetworkAddress, *, timeout: float) -> tuple[PlayedSocket, tuple[str, int]]:  # noqa: ASYNC109
        assert timeout == 5.0
        self.dialled.append((address, self.loop.time()))
        if address not in self.reachable:
            raise ConnectionRefusedError(111, "Connection refused")
        return self._socket(), (address.host, address.port)

    def _socket(self) -> PlayedSocket:
        self.socks.append(PlayedSocket(self.loop))
        return self.socks[-1]


def said(sock: PlayedSocket) -> list[LinkMessage]:
    """The link frames that were written to a neighbour."""
    return [decode_link(frame) for frame in FrameDecoder(1 << 20).feed(sock.written) if frame[4] < 0x10]


def sent(sock: PlayedSocket) -> bytes:
    """The dialog frames that were written to a neighbour, without the time they waited."""
    frames = [frame for frame in FrameDecoder(1 << 20).feed(sock.written) if frame[4] >= 0x10]
    return b"".join(frame[:12] + bytes(4) + frame[16:] for frame in frames)


def answer_unknown(probe: Probe) -> ProbeReply:
    """A PROBE_REPLY that claims nothing."""
    return ProbeReply(id=probe.id, broker_instance=probe.broker_instance)
