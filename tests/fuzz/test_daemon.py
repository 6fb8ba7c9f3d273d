"""Daemons as processes, plain and with TLS, take everything that was kept: they serve on, no larger than before."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from broker.protocol.frame import Hello, encode_link
from examples.demo.topology import Daemon, Topology, free_port, wait_for
from tests.fuzz.door import inputs, targets
from tests.fuzz.target import KIB
from tests.support.certificates import authority, make

TARGETS = targets()
GREETING = encode_link(Hello(arbitration=b"f" * 16, name="fuzz"))
ROUNDS = 2
GROWTH_MAX = 8 * KIB * KIB
SECONDS = 30.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    """A gateway in plain text, and an endpoint that takes TLS only."""
    ca = authority()
    certificate, key = make("secured", "127.0.0.1", by=ca).store(tmp_path, "secured")
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    tls = {
        "encryption": "required",
        "authentication": "certificate",
        "certificate": str(certificate),
        "private_key": str(key),
        "trust": [str(tmp_path / "ca.pem")],
    }
    admin = {"listen": f"127.0.0.1:{free_port()}"}
    with Topology(tmp_path) as net:
        net.add("plain", forwarding=True, settings={"endpoint": {"encryption": "disabled"}, "admin": admin})
        net.add("secured", databases=["orders"], settings={"endpoint": tls})
        net.start()
        yield net


def say(port: int, data: bytes) -> None:
    """Connect, say it all, and hear what comes until the other side closes; whatever becomes of it."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def play(plain: Daemon, secured: Daemon, admin_port: int) -> None:
    """Every input once, at the door that it is for."""
    for data in inputs(TARGETS["stream"]):
        say(plain.port, data[1:])
    for data in inputs(TARGETS["link"]):
        say(plain.port, (GREETING if data and data[0] % 2 == 0 else b"") + data[1:])
    for data in inputs(TARGETS["tls"]):
        say(secured.port, data)
    for data in inputs(TARGETS["http"]):
        say((admin_port, admin_port, plain.observe_port)[data[0] % 3 if data else 0], data[1:])


def rss(*daemons: Daemon) -> int:
    return sum(psutil.Process(daemon.pid).memory_info().rss for daemon in daemons)


@pytest.mark.timeout(300)
def test_memory_of_daemons_does_not_move_and_they_serve_on(net: Topology) -> None:
    plain, secured = net.daemons["plain"], net.daemons["secured"]
    admin_port = int(plain.config.read_text().split("[admin]")[1].split(":")[1].split('"')[0])
    play(plain, secured, admin_port)
    play(plain, secured, admin_port)
    before = rss(plain, secured)

    for _ in range(ROUNDS):
        play(plain, secured, admin_port)

    assert rss(plain, secured) - before < GROWTH_MAX
    wait_for(lambda: not plain.status()["connections"], seconds=SECONDS, what="every link ended")
    for daemon in (plain, secured):
        status = daemon.status()
        assert (True, 0) == (status["ready"], status["forwarding"]["unaccounted"])
        assert not [line for line in daemon.log.read_text().splitlines() if '"level":"error"' in line]
        assert "Traceback" not in daemon.log.read_text()
        assert 0 == daemon.stop()
