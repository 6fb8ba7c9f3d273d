"""What comes from further away than a neighbour: sealed frames, answers of the DNS and of a daemon, a pairing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from broker.admin.event_stream import events
from broker.admin.meeting import Channel, _Acceptance, _Confirmation, _Opening
from broker.errors import FrameMalformedError, PairingError
from broker.routing_service import srv
from broker.routing_service.srv import Lookup, choose_record, dns_lookup
from broker.security.key_packet import Mode
from broker.security.opening import Opener
from broker.security.refusal import SealRefusedError
from broker.security.session import Sealer, Secured
from broker.wire.frame import decode_dialog
from tests.fuzz.target import KIB, Target
from tests.support.identities import credentials
from tests.support.sealed import NOW, initiator, sealed

# --- sealed frames ---


@cache
def _secured() -> Secured:
    return Secured(Mode.FULL, far_principal="CN=billing")


@cache
def _opener() -> Opener:
    return Opener(credentials("billing", "orders"), keys_max=64)


@cache
def _good_frames() -> tuple[bytes, ...]:
    contact = initiator(_secured())
    # With keys of this process alone: what another one has sealed is none of these.
    by = Sealer(_secured(), contact.direction(), credentials("orders", "billing"), os.urandom)
    return tuple(sealed(contact, by, bytes([number]) * 20) for number in range(3))


def _opened(data: bytes) -> None:
    """Whatever comes as a sealed frame: only what the far database has sealed is believed, and as it was."""
    header, body = decode_dialog(data)
    opened = _opener().open(header, data, body, lambda: None, NOW)
    # Two fields change on the way, and nothing else.
    good = {frame[:6] + frame[7:12] + frame[16:] for frame in _good_frames()}
    assert data[:6] + data[7:12] + data[16:] in good
    assert opened.body


# --- the DNS ---


DNS_SECONDS, REAL_SECONDS = 0.05, srv.LOOKUP_SECONDS  # for an answer that is passed over, to have many a second


class _Nameserver(threading.Thread):
    """Answers every question with what it is given, under the question's number. Shape: `port` on 127.0.0.1."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="nameserver")
        self.answer = b""
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self.port: int = self._sock.getsockname()[1]
        self.start()

    def run(self) -> None:
        while True:
            question, whom = self._sock.recvfrom(4096)
            if not question:  # its own last word
                return
            asked = question[12 : question.index(b"\0", 12) + 5]
            self._sock.sendto(question[:2] + self.answer.replace(b"QUESTION", asked), whom)

    def close(self) -> None:
        self._sock.sendto(b"", ("127.0.0.1", self.port))
        self.join()
        self._sock.close()


@cache
def _dns() -> tuple[_Nameserver, Lookup]:
    server = _Nameserver()
    srv.LOOKUP_SECONDS = DNS_SECONDS
    return server, dns_lookup(("127.0.0.1", server.port))


def _answer(data: bytes) -> None:
    """An answer of any server: records, or a LookupError; and one of the records is chosen, or none."""
    server, lookup = _dns()
    server.answer = data + b"\x00" * max(0, 10 - len(data))
    records, ttl = lookup("_broker._tcp.shop.example")
    chosen = choose_record(records, "//shop.example/Billing")
    assert ttl >= 0
    assert chosen is None or chosen in records


def _answers() -> list[bytes]:
    """Behind the number of the question: flags, counts, the question, records."""
    head = bytes.fromhex("8180 0001 0001 0000 0000") + b"QUESTION"
    record = bytes.fromhex("c00c 0021 0001 0000003c")
    target = b"\x07gateway\x07example\x00"
    good = (6 + len(target)).to_bytes(2, "big") + bytes.fromhex("0001 0002 0fb6") + target
    return [
        head + record + good,
        head + record + bytes.fromhex("0008 0001 0002 0fb6 c00c"),  # a name that points into the question
        head + record + bytes.fromhex("0007 0000 0000 0000 00"),  # the root: no such service
        head + record + bytes.fromhex("ffff 0001"),
        bytes.fromhex("8183 0001 0000 0000 0000") + b"QUESTION",
        bytes.fromhex("8180 0000 0000 0000 0000"),
        bytes.fromhex("8180 0001 0001 0000 0000") + b"QUESTION" + b"\xc0\x0c",
    ]


# --- events of a daemon ---


def _events(data: bytes) -> None:
    """What a daemon, or somebody in its place, streams: events, or a ValueError."""
    for event in events(data.splitlines(keepends=True)):
        assert isinstance(event.name, str)


# --- a pairing ---


def _meeting(data: bytes) -> None:
    """What the other side of a pairing says, before and after it has proved anything; the first byte says when."""
    kinds: tuple[Any, ...] = (_Opening, _Acceptance, _Confirmation)

    async def hear() -> None:
        reader = asyncio.StreamReader(limit=64 * KIB)
        reader.feed_data(data[1:])
        reader.feed_eof()
        channel = Channel(reader, None)  # type: ignore[arg-type]  # it only hears
        await channel.hear(kinds[data[0] % 3 if data else 0], seconds=5)

    _loop().run_until_complete(hear())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _said(value: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "big") + data


def _sayings() -> list[bytes]:
    good: list[Callable[[], msgspec.Struct]] = [
        lambda: _Opening(b"n" * 32),
        lambda: _Acceptance(b"n" * 32, b"{}", b"p" * 32),
        lambda: _Confirmation(b"{}", b"p" * 32),
    ]
    return [bytes([number]) + _said(make()) for number, make in enumerate(good)] + [b"\0\xff\xff\xff\xff", b"\1\0\0"]


def close() -> None:
    """End what the targets have started; the next input starts it anew."""
    if _dns.cache_info().currsize:
        _dns()[0].close()
        _dns.cache_clear()
        srv.LOOKUP_SECONDS = REAL_SECONDS
    if _loop.cache_info().currsize:
        _loop().close()
        _loop.cache_clear()


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (
        Target("opened", _opened, (SealRefusedError, FrameMalformedError), lambda: list(_good_frames())),
        Target("dns", _answer, (LookupError,), _answers),
        Target(
            "events",
            _events,
            (ValueError,),
            lambda: [
                b'event: pulse\nid: 1\ndata: {"a": 1}\n\n',
                b": x\ndata: [\ndata: 1]\n\ndata\n\n",
                b"data: [" * 900,
            ],
        ),
        Target("meeting", _meeting, (PairingError,), _sayings),
    )
