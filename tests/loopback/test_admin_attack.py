"""
A running daemon's HTTP side, attacked over the network, with rights and without: it goes on, its memory is bounded, and
the Unix socket answers. What a crowd can do to the port that it attacks is in docs/admin.md.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from broker.admin.server import CONNECTIONS_MAX
from broker.config.admin_access import AdminRole, new_token
from broker.config.values import ListenAddress
from examples.demo.topology import Daemon, Topology, free_port
from tests.support.admin import Answer, ask, bearer, read_answer, request, speak

FREE_SECONDS = 60.0  # an idle crowd keeps its connections for twenty
HOSTILE = "<script>alert(1)</script>\r\nX-Evil: 1\r\n\r\n<img src=x onerror=alert(1)>"
MIB = 2**20


class Attacked:
    """The daemon. Shape: `admin` and `observe` its ports, `socket` the Unix socket; `tokens` headers by role."""

    def __init__(self, daemon: Daemon, admin: int) -> None:
        self.daemon = daemon
        self.admin = ListenAddress("127.0.0.1", admin)
        self.socket = daemon.directory / "admin.sock"
        self.observe = ListenAddress("127.0.0.1", daemon.observe_port)
        path, now = daemon.directory / "tokens", datetime.now(UTC)
        given = list(AdminRole)[1:]
        self.tokens = {role: bearer(new_token(path, role.word, role, now=now, expires_at=None)) for role in given}

    @property
    def rss(self) -> int:
        return int(psutil.Process(self.daemon.pid).memory_info().rss)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    admin = {"listen": f"127.0.0.1:{free_port()}", "loopback_role": "none"}
    with Topology(tmp_path_factory.mktemp("attacked")) as net:
        daemon = net.add("one", forwarding=True, databases=["orders"], settings={"admin": admin})
        made = Attacked(daemon, int(admin["listen"].rpartition(":")[2]))  # with its tokens, so that it starts
        net.start()
        yield made
        log = daemon.log.read_text()
        assert "Traceback" not in log
        assert '"level":"error"' not in log


@pytest.fixture(autouse=True)
def _serves_on(attacked: Attacked) -> Iterator[None]:
    yield
    assert attacked.daemon.status()["ready"]


@asynccontextmanager
async def crowd(where: ListenAddress, count: int, data: bytes) -> AsyncIterator[list[Any]]:
    """So many connections, on which this is sent."""
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (where.host, where.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
            writer.write(data)
            opened.append((reader, writer))
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def served(where: ListenAddress, path: str, headers: Mapping[str, str]) -> Answer:
    """The answer once there is a connection for it."""
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        with contextlib.suppress(AssertionError):  # closed without an answer
            answer = read_answer(await speak(where, request("GET", path, headers)))
            if answer.status != 503:
                return answer
        assert time.monotonic() < deadline, "locked out"
        await asyncio.sleep(0.1)


# --- connections ---------------------------------------------------------------------------------------------


@pytest.mark.promise("Only permitted peers connect, send and read")
def test_an_idle_crowd_has_its_port_for_a_while_and_never_the_socket(attacked: Attacked) -> None:
    """With half a head."""
    data = b"GET / HTTP/1.1\r\nX: "

    async def attack() -> tuple[bool, list[Answer]]:
        async with crowd(attacked.admin, CONNECTIONS_MAX + 20, data), crowd(attacked.observe, CONNECTIONS_MAX, data):
            over = await speak(attacked.admin, b"")
            return over.startswith(b"HTTP/1.1 503 "), [
                await ask(attacked.socket, "GET", "/v1/status"),
                await served(attacked.admin, "/v1/drain", attacked.tokens[AdminRole.ADMIN]),
                await served(attacked.observe, "/livez", {}),
            ]

    is_full, answers = asyncio.run(attack())

    assert (True, [200, 200, 200]) == (is_full, [answer.status for answer in answers])


@pytest.mark.promise("Memory is bounded")
def test_a_crowd_that_does_not_read_what_it_asks_for_takes_little_memory(attacked: Attacked) -> None:
    """Metrics and the page: neither takes any right to ask for."""
    metrics = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40
    page = b"GET /page/uplot.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
    before = attacked.rss

    async def attack() -> list[Answer]:
        async with crowd(attacked.observe, CONNECTIONS_MAX, metrics), crowd(attacked.admin, CONNECTIONS_MAX, page):
            on_socket = await ask(attacked.socket, "GET", "/v1/status")
        return [
            on_socket,
            await served(attacked.observe, "/livez", {}),
            await served(attacked.admin, "/v1/drain", attacked.tokens[AdminRole.ADMIN]),
        ]

    assert [200, 200, 200] == [answer.status for answer in asyncio.run(attack())]
    assert attacked.rss - before < 64 * MIB


# --- names ---------------------------------------------------------------------------------------------------


def test_hostile_names_stay_text_in_every_answer(attacked: Attacked) -> None:
    """No header of their own, no markup, no line of the metrics."""
    name = HOSTILE[:120].replace("]", "")
    create = f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{HOSTILE}', ADDRESS = 'tcp://127.0.0.1:9'"
    admin = attacked.tokens[AdminRole.ADMIN]

    async def attack() -> list[Answer]:
        body = {"statement": create, "database": "msdb"}
        answers = [await ask(attacked.admin, "POST", "/v1/sql", headers=admin, body=body)]
        answers += [
            await ask(attacked.admin, method, path, headers=admin, body=asked)
            for method, path, asked in (
                ("GET", "/", None),
                ("GET", "/v1/events", None),
                ("GET", "/v1/views/msdb.sys.routes", None),
                ("POST", "/v1/explain", {"to": HOSTILE, "incoming": True}),
                ("POST", "/v1/sql", {"statement": f"SELECT 1 FROM [{HOSTILE}]"}),
                ("GET", "/v1/%3Cscript%3E", None),
            )
        ]
        answers += [
            await ask(attacked.observe, "GET", path)
            for path in ("/metrics", "/readyz?verbose&exclude=%3Cscript%3E%0d%0aX-Evil:%201", "/readyz/%3Cscript%3E")
        ]
        return answers

    answers = asyncio.run(attack())

    assert [200, 200, 200, 200, 200, 404, 404, 200, 200, 404] == [answer.status for answer in answers]
    for answer in answers:
        kind = answer.headers["content-type"]
        assert "x-evil" not in answer.headers
        assert kind.startswith("text/html") == (answer is answers[1])
        if kind.startswith("application/"):
            json.loads(answer.body)
    assert b"alert(1)" not in answers[1].body
    assert not [line for line in answers[7].body.split(b"\n") if line.startswith((b"X-Evil", b"<"))]
