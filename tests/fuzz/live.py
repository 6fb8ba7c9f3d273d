"""
What a stranger says to a port that is open: a link, a TLS handshake, HTTP; each to the real thing on a real socket.

The servers run in a loop of their own, which turns only while an input is tried, so a fuzzer sees the code that an
input has reached. Whatever is said, the server closes or answers in time, logs no error, and holds nothing of it
afterwards.
"""

import asyncio
import re
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from broker.daemon.instance import Instance, serve
from broker.net.tls import ALPN
from broker.protocol.frame import Hello, Ping, encode_dialog, encode_link
from broker.routing.address import NetworkAddress
from tests.fuzz.peer import hostile_maps, link_frame
from tests.fuzz.target import KIB, Target
from tests.support.admin import speak
from tests.support.certificates import authority, make, security
from tests.support.forwarding import PLAIN
from tests.support.loopback import instance

SECONDS = 10.0  # for a server to close what a stranger has said its last word on
ANSWER_MAX = 256 * KIB
_BUG = re.compile(rb"^HTTP/1\.[01] (500|501|502)", re.MULTILINE)
CONFIGURATION = """
[instance]
name = "fuzzed"
state_dir = "."
[endpoint]
listen = ["127.0.0.1:0"]
[databases.orders]
path = "orders.db"
[admin]
listen = "127.0.0.1:0"
[observe]
listen = "127.0.0.1:0"
log_level = "error"
"""


class Stage:
    """A loop, and what runs in it. Made once, at the first input."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-fuzz-")))

    def run(self, work: Awaitable[Any]) -> Any:
        """Let the loop turn until this is done."""
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        """End everything that runs."""
        self.run(self.stack.aclose())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()


@cache
def _stage() -> Stage:
    return Stage()


def close() -> None:
    """End what the targets have started; the next input starts it anew."""
    if _stage.cache_info().currsize:
        _stage().close()
        for made in (_stage, _peer, _secured, _daemon):
            made.cache_clear()


async def _say(address: NetworkAddress, data: bytes) -> None:
    """
    Connect, say it all, say that this was all, and hear what comes until the other side closes.

    Raises:
        TimeoutError: It does not close.
    """
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):  # closed in the middle of what was said: a refusal as well
                writer.write(data)
                writer.write_eof()
                while await reader.read(ANSWER_MAX):
                    pass
    finally:
        writer.transport.abort()


def _without_errors(attempt: Callable[[], Any]) -> Any:
    with capture_logs() as logs:
        result = attempt()
    assert [] == [line for line in logs if line["log_level"] in {"error", "critical"}]
    return result


# --- a link ---


@cache
def _peer() -> Any:
    return _stage().run(_stage().stack.enter_async_context(instance(pool_bytes=1 << 20, service="//to")))


def _link(data: bytes) -> None:
    """A neighbour behind whose HELLO, where the first byte is even, anything may come."""
    near = _peer()
    hello = encode_link(Hello(arbitration=b"p" * 16, name="fuzz")) if data and data[0] % 2 == 0 else b""

    async def attempt() -> None:
        await _say(near.address, hello + data[1:])
        async with asyncio.timeout(SECONDS):
            while near.peers.links:  # noqa: ASYNC110 - it takes some turns of the loop
                await asyncio.sleep(0)
        near.delivered.clear()
        near.advice.clear()

    _without_errors(lambda: _stage().run(attempt()))
    assert (0, 0) == (near.forwarder.unaccounted, near.forwarder.pool.used_bytes)


def _link_seeds() -> list[bytes]:
    frame = encode_dialog(PLAIN, b"body")
    behind = [encode_link(Ping(b"12345678")) * 3, frame * 3, frame[:50], b"\xff" * 40]
    return [
        *(b"\0" + data for data in behind),
        *(b"\1" + data for data in behind),
        *(b"\1" + link_frame(1, body) for body in hostile_maps()),
        *(b"\0" + link_frame(kind, body) for kind in (4, 5, 6) for body in hostile_maps()[:3]),
    ]


# --- a TLS handshake ---


@cache
def _secured() -> Any:
    """An endpoint that takes TLS only."""
    stage, ca = _stage(), authority()
    secured = security(stage.directory, "here", make("here", "127.0.0.1", by=ca), ca)
    return stage.run(stage.stack.enter_async_context(instance(security=secured, handshake=SECONDS / 2)))


def _tls(data: bytes) -> None:
    """Nobody gets in who has not shown a certificate, and who is refused is counted and closed."""
    secured = _secured()
    before = secured.peers.protocol_errors.total()

    async def attempt() -> None:
        await _say(secured.address, data)
        async with asyncio.timeout(SECONDS):
            while secured.peers.protocol_errors.total() == before:  # noqa: ASYNC110 - it takes some turns of the loop
                await asyncio.sleep(0)

    _without_errors(lambda: _stage().run(attempt()))
    assert 1 == secured.peers.protocol_errors.total() - before
    assert not secured.peers.links


def client_hello() -> bytes:
    """The first flight of a good client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    tls = context.wrap_bio(incoming, outgoing)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody has answered")


def _tls_seeds() -> list[bytes]:
    hello = client_hello()
    old = bytes.fromhex("16030100310100002d0303") + bytes(32) + bytes.fromhex("000006002f0035000a0100")
    return [
        hello,
        hello[:80],
        hello + bytes.fromhex("140303000101"),
        hello + bytes.fromhex("1703030020") + bytes(32),
        old,
        bytes.fromhex("1503030002022a"),  # an alert
        bytes.fromhex("16030140ff"),  # a record of the greatest length, of which nothing comes
        bytes.fromhex("160301ffff"),
        b"\x80\x2e\x01\x00\x02" + bytes(41),  # SSL 2
        encode_link(Hello()),
        b"GET / HTTP/1.1\r\n\r\n",
    ]


# --- HTTP ---


@cache
def _daemon() -> Instance:
    path = _stage().directory / "broker.toml"
    path.write_text(CONFIGURATION)
    running: Instance = _stage().run(_stage().stack.enter_async_context(serve(path)))
    return running


SENTINEL = b"\r\n\r\nGET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"  # answered: all is said
IDLE_SECONDS = 0.05  # in which nothing comes: the server waits for the rest of a body


async def _ask(data: bytes, *, idle: float = IDLE_SECONDS) -> bytes:
    """At the admin port, the admin socket, or the port of observation, as the first byte says."""
    running = _daemon()
    doors = (running.admin.admin_address, Path(running.settings.admin.socket), running.admin.observe_address)
    door = doors[data[0] % 3 if data else 0]
    assert door is not None
    return await speak(door, data[1:] + SENTINEL, patience=idle, is_enough=lambda heard: len(heard) >= ANSWER_MAX)


def _http(data: bytes) -> None:
    """Whatever is asked, no answer is a bug, none shows a traceback, and the next question is answered."""
    _daemon()

    answers = _without_errors(lambda: _stage().run(_ask(data)))

    assert not _BUG.search(answers), answers
    assert b"Traceback" not in answers
    assert _stage().run(_ask(data[:1], idle=SECONDS)).startswith(b"HTTP/1."), "it answers no more"


def _http_seeds() -> list[bytes]:
    def ask(method: str, path: str, body: str = "", *headers: str) -> bytes:
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        if body:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode()

    get = [ask("GET", path) for path in ("/v1/status", "/v1/views/sys.routes?limit=1&after=0", "/v1/openapi.json", "/")]
    post = [
        ask("POST", "/v1/sql", '{"statement": "SELECT name FROM sys.databases"}'),
        ask("POST", "/v1/sql", '{"statement": "CREATE QEUE Q", "database": "orders"}'),
        ask("POST", "/v1/explain", '{"to": "//shop/Billing"}'),
        ask("POST", "/v1/plan", '{"script": "CREATE ROUTE r WITH ADDRESS = \'tcp://a\'"}'),
        ask("POST", "/v1/sql", "[" * 200),
        ask("POST", "/v1/sql", "{}", "Transfer-Encoding: chunked"),
    ]
    tricks = [
        b"GET /v1/../v1/%2e%2e/%00status HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/sql HTTP/1.1\r\nContent-Length: 99999999999\r\nContent-Length: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nOrigin: http://evil\r\nHost: evil\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /readyz?verbose HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    return [bytes([door]) + request for door in range(3) for request in (*get, *post, *tricks)]


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (
        Target("link", _link, (), _link_seeds, input_max=8 * KIB),
        Target("tls", _tls, (), _tls_seeds, input_max=8 * KIB),
        Target("http", _http, (), _http_seeds, memory_max=32 * KIB * KIB),
    )
