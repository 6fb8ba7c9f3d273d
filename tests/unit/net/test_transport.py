"""The bytes of a link over a played socket, plain and through TLS, however the records are cut."""

import asyncio
import os
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.forwarding.pool import READ_BYTES
from broker.net.tls import Security
from broker.net.transport import GATHER_BYTES, PlainTransport, TlsTransport, explain
from tests.support.certificates import make, security
from tests.support.played import PlayedLoop, PlayedSocket


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Security:
    directory: Path = tmp_path_factory.mktemp("tls")
    return security(directory, "here", make("here", "localhost"))


class Ends:
    """
    A transport, and a neighbour that speaks TLS to it.

    Shape: `heard` what the link would have read, with None for its end; `problems` what its reads failed with.
    """

    def __init__(self, loop: PlayedLoop, side: Security, *, early: bytes = b"") -> None:
        assert side.server is not None
        assert side.client is not None
        self.loop = loop
        self.sock = PlayedSocket(loop)
        self.heard: list[bytes | None] = []
        self.problems: list[str] = []
        self._slab = memoryview(bytearray(READ_BYTES))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._to_peer, self._from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = side.server.wrap_bio(incoming, outgoing, server_side=True)
        self.peer = side.client.wrap_bio(self._to_peer, self._from_peer)
        self._step(self.peer)
        incoming.write(self._from_peer.read())
        self._step(tls)
        self._to_peer.write(outgoing.read())
        self.peer.do_handshake()
        if early:
            self.peer.write(early)
        incoming.write(self._from_peer.read())
        tls.do_handshake()
        sock: Any = self.sock
        scratch = bytearray(READ_BYTES)
        self.transport = TlsTransport(sock, tls, incoming, outgoing, chain=(), own=None, scratch=scratch)

    @staticmethod
    def _step(tls: ssl.SSLObject) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()

    def start(self) -> None:
        self.transport.add_reader(self.read)

    def read(self) -> None:
        """What a link does when something can be read."""
        try:
            size = self.transport.recv_into(self._slab)
        except BlockingIOError:
            return
        except OSError as error:
            self.problems.append(str(error))
            return
        self.heard.append(bytes(self._slab[:size]) if size else None)

    def records(self, *parts: bytes) -> bytes:
        """Each part as records of its own."""
        for part in parts:
            self.peer.write(part)
        return self._from_peer.read()

    def goodbye(self) -> bytes:
        """The neighbour's close_notify."""
        with pytest.raises(ssl.SSLError):
            self.peer.unwrap()
        return self._from_peer.read()

    def arrived(self) -> bytes:
        """What the neighbour reads of all that was written so far."""
        self._to_peer.write(self.sock.written)
        self.sock.written = b""
        found = b""
        try:
            while part := self.peer.read(1 << 16):
                found += part
        except ssl.SSLWantReadError:
            pass
        return found

    @property
    def text(self) -> bytes:
        return b"".join(part for part in self.heard if part)


@pytest.fixture
async def ends(loop: PlayedLoop, side: Security) -> Ends:
    made = Ends(loop, side)
    made.start()
    return made


# --- plain ---


@pytest.mark.parametrize("kind", ["reader", "writer"])
async def test_socket_that_the_loop_has_given_up_is_watched_anew(
    kind: str, loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock: Any = PlayedSocket(loop)
    transport = PlainTransport(sock)
    add, remove, given_up = getattr(loop, f"add_{kind}"), getattr(loop, f"remove_{kind}"), [sock]

    def add_if_alive(fd: Any, callback: Any) -> None:
        if given_up:
            raise RuntimeError("the handler is closed")
        add(fd, callback)

    def forget(fd: Any) -> bool:
        given_up.clear()
        return bool(remove(fd))

    monkeypatch.setattr(loop, f"add_{kind}", add_if_alive)
    monkeypatch.setattr(loop, f"remove_{kind}", forget)

    watch = {"reader": transport.renew_reader, "writer": transport.add_writer}[kind]
    watch(called := lambda: None)

    assert {sock: called} == (loop.readers if kind == "reader" else loop.writers)


# --- receiving ---


@pytest.mark.parametrize("piece", [1, 5, 100, 16_000, 1 << 30])
async def test_records_may_be_cut_anywhere(piece: int, ends: Ends) -> None:
    parts = [os.urandom(size) for size in (1, 3000, 16_384, 40_000 if piece > 1 else 10)]

    ends.sock.feed(ends.records(*parts), piece=piece)

    assert b"".join(parts) == ends.text
    assert [] == ends.problems


async def test_one_read_never_brings_more_than_the_slab_holds_and_leaves_nothing_inside(ends: Ends) -> None:
    data = os.urandom(3 * READ_BYTES)
    sealed = ends.records(data)
    ends.sock.feed(sealed[:16_000])  # a record that has begun

    ends.sock.feed(sealed[16_000:])
    while len(ends.text) < len(data):
        ends.sock.read()

    assert (data, True) == (ends.text, max(len(part) for part in ends.heard if part) <= READ_BYTES)


async def test_what_came_with_the_handshake_is_read_without_the_socket_unless_paused(
    loop: PlayedLoop, side: Security
) -> None:
    ends = Ends(loop, side, early=b"HELLO")

    ends.start()
    ends.transport.remove_reader()
    await asyncio.sleep(0)
    assert [] == ends.heard
    ends.start()
    await asyncio.sleep(0)

    assert [b"HELLO"] == ends.heard


async def test_end_in_the_read_that_brought_the_last_bytes_is_heard_in_the_next_turn(ends: Ends) -> None:
    ends.sock.feed(ends.records(b"last") + ends.goodbye() + b"\x17\x03\x03 behind the end")
    assert [b"last"] == ends.heard

    await asyncio.sleep(0)

    assert [b"last", None] == ends.heard
    assert [] == ends.problems


async def test_changed_record_is_a_problem_that_the_peer_is_told(ends: Ends) -> None:
    ends.sock.feed(ends.records(b"good"))
    broken = bytearray(ends.records(b"bad"))
    broken[-1] ^= 1

    ends.sock.feed(bytes(broken))

    assert ["a TLS record was changed on its way"] == ends.problems
    with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
        ends.arrived()


# --- sending ---


@pytest.mark.parametrize("room", [0, 1, 5, 1000, 70_000])
async def test_what_the_socket_does_not_take_is_held_within_a_bound_and_goes_first(room: int, ends: Ends) -> None:
    data = os.urandom(4 * GATHER_BYTES)
    ends.sock.room = room

    taken = ends.transport.send(data)
    assert ends.transport.holds
    assert len(ends.transport._rest) <= GATHER_BYTES + 1024
    assert 0 == ends.transport.send(data[taken:])
    ends.sock.room = 1 << 30
    taken += ends.transport.send(data[taken:])

    assert (len(data), data, False) == (taken, ends.arrived(), ends.transport.holds)


async def test_socket_that_failed_fails_the_send(ends: Ends) -> None:
    ends.sock.problem = 32

    with pytest.raises(BrokenPipeError):
        ends.transport.send(b"x")


# --- the end ---


@pytest.mark.parametrize(("room", "is_held"), [(10, True), (1 << 30, False)])
async def test_end_is_said_behind_what_is_held_and_the_other_direction_goes_on(
    room: int, *, is_held: bool, ends: Ends
) -> None:
    ends.sock.room = room
    ends.transport.send(b"last")

    ends.transport.shut()
    assert (is_held, not is_held) == (ends.transport.holds, ends.sock.shut)
    if is_held:
        ends.sock.room = 1 << 30
        ends.transport.send(b"")

    assert (b"last", True, False) == (ends.arrived(), ends.sock.shut, ends.transport.holds)
    ends.sock.feed(ends.records(b"still here"))
    ends.sock.feed(ends.records(b", and gone"))
    assert b"still here, and gone" == ends.text


async def test_answers_that_nobody_reads_have_a_bound(ends: Ends) -> None:
    ends.sock.room = 0
    ends.transport.send(b"x" * GATHER_BYTES)
    transport: Any = ends.transport
    transport._outgoing = SimpleNamespace(read=lambda: bytes(GATHER_BYTES - 4096))

    transport._push()
    with pytest.raises(ConnectionError, match="again and again"):
        transport._push()


# --- sentences ---


@pytest.mark.parametrize(
    ("error", "reason", "code", "sentence"),
    [
        (ssl.SSLError(1, "text"), "WRONG_VERSION_NUMBER", None, "the peer does not speak TLS"),
        (ssl.SSLError(1, "text"), "SOMETHING_NEW", None, "TLS failed (something new)"),
        (ssl.SSLError(1, "text"), None, None, "TLS failed (unknown)"),
        (ssl.SSLEOFError(8, "eof"), None, None, "in the middle of TLS"),
        (ssl.SSLCertVerificationError(1, "text"), None, 10, "expired"),
        (ssl.SSLCertVerificationError(1, "text"), None, 9, "not valid yet"),
        (
            ssl.SSLCertVerificationError(1, "text"),
            None,
            20,
            "no issuer: put that certificate into endpoint.peers (/p/*) here",
        ),
    ],
)
def test_what_openssl_found_is_a_sentence(error: Any, reason: str | None, code: int | None, sentence: str) -> None:
    error.reason = reason
    if code is not None:
        error.verify_code, error.verify_message = code, "no issuer"

    assert sentence in explain(error, peers=["/p/*"])
