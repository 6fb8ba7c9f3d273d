"""Instances and raw neighbours on real sockets of 127.0.0.1, and what scenes do with daemons there."""

import asyncio
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import broker
from broker.config.settings import EndpointSettings, Settings
from broker.config.values import ListenAddress
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.net.listener import Listener, bind
from broker.net.peers import Peers
from broker.net.tls import NO_SECURITY, Security
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Hello, LinkMessage, Rejected, decode_dialog, decode_link, encode_dialog, encode_link
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.forwarding import PLAIN
from tests.support.peers import answer_unknown

SECONDS = 20.0 * float(os.environ.get("BROKER_TEST_SLOWNESS", "1"))  # the deadline of every wait
HERE = b"h" * 16


def message(to_service: str, number: int = 0, body: bytes = b"body", **fields: Any) -> bytes:
    """A dialog frame."""
    return encode_dialog(replace(PLAIN, to_service=to_service, sequence_number=number, **fields), body)


def numbers(frames: list[bytes]) -> list[int]:
    """The sequence numbers of dialog frames."""
    return [decode_dialog(frame)[0].sequence_number for frame in frames]


async def until(is_so: Callable[[], object], *, seconds: float = SECONDS) -> None:
    """Wait until it is so; it has to be within so many seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.005)


class Instance:
    """
    A forwarder, its peers and a listener.

    Shape: `service` that it hosts; `handshake` seconds; `delivered` frames that ended here; `advice` what next hops
    rejected; `address` where it listens.
    """

    def __init__(
        self,
        *,
        service: str = "//here",
        handshake: float = 10.0,
        pool_bytes: int = 1 << 20,
        arbitration: bytes = b"",
        is_announcing: bool = True,
        port: int = 0,
        security: Security = NO_SECURITY,
    ) -> None:
        self.delivered: list[bytes] = []
        self.advice: list[Rejected] = []
        self.service = service
        self.listener = Listener(bind("127.0.0.1", port), self._accept, ListenAddress("127.0.0.1", port))
        self.address = NetworkAddress("127.0.0.1", self.listener.port)
        hello = Hello(
            arbitration=arbitration or os.urandom(16),
            max_frame=65536,
            addresses=(str(self.address),) if is_announcing else (),
        )
        endpoint = EndpointSettings(handshake_timeout=handshake, connect_timeout=5.0)
        self.peers = Peers(
            hello,
            Settings(endpoint=endpoint),
            on_rejected=lambda _, rejected: self.advice.append(rejected),
            make_forwarder=partial(
                Forwarder,
                Limits(pool_bytes=pool_bytes, max_frame=65536, max_hops=16),
                deliver=lambda _, frames, __: self.delivered.extend(frames),
            ),
            answer_probe=answer_unknown,
            on_capacity=lambda: None,
            security=security,
            jitter=lambda: 0.0,
        )
        self.forwarder, self.mirrors = self.peers.forwarder, self.peers.mirrors
        self.route()
        self.peers.start()
        self.listener.start()

    def route(self, **services: NetworkAddress) -> None:
        """Routes from //name to an address; what is hosted here is delivered."""
        routes = [Route(name, address, remote_service_name=f"//{name}") for name, address in services.items()]
        routes.append(Route("here", LOCAL, remote_service_name=self.service))
        table = build_table(routes, now=datetime.now(UTC))
        self.forwarder.set_routing(table=table, hosted=hosted({HERE: [self.service]}), is_forwarding=True)
        self.mirrors.on_routes([table])
        self.forwarder.reroute_waiting(asyncio.get_running_loop().time())

    def _accept(self, sock: socket.socket, address: str) -> None:
        self.peers.accept(sock, address)

    def states(self) -> list[str]:
        return sorted(str(link.state) for link in self.peers.links.values())

    async def close(self, *, seconds: float = 1.0) -> None:
        self.listener.release()
        await self.peers.close(reason="the test is over", seconds=seconds)
        assert self.forwarder.unaccounted == 0
        assert self.forwarder.pool.used_bytes == 0


@asynccontextmanager
async def instance(**tuning: Any) -> AsyncIterator[Instance]:
    """A running instance."""
    running = Instance(**tuning)
    try:
        yield running
    finally:
        await running.close()


class Raw:
    """A neighbour that is only a socket: what it says is up to the test, and it hears nothing unless it reads."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[bytes] = []
        self.has_ended = False
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(1 << 20)

    async def say(self, *messages: LinkMessage | bytes) -> None:
        """Send link messages, or any bytes."""
        data = b"".join(part if isinstance(part, bytes) else encode_link(part) for part in messages)
        await asyncio.wait_for(self._loop.sock_sendall(self._sock, data), SECONDS)

    async def greet(self, **hello: Any) -> None:
        """Say HELLO as a process of its own."""
        own = Hello(arbitration=os.urandom(16), max_frame=1 << 20)
        await self.say(msgspec.structs.replace(own, **hello))

    async def read(self) -> None:
        """Hear what has come, or the end."""
        if data := await self._receive():
            self.frames += self._decoder.feed(data)

    async def hear(self, kind: type[LinkMessage]) -> Any:
        """The next link message of this kind, others left out; what was heard before does not count again."""
        while True:
            for number, frame in enumerate(self.frames):
                if frame[4] < 0x10 and isinstance(found := decode_link(frame), kind):
                    del self.frames[number]
                    return found
            assert not self.has_ended, f"the end came before {kind.__name__}"
            await self.read()

    async def dialog_frames(self, count: int) -> list[bytes]:
        """So many dialog frames, in order, and not one more so far."""
        while sum(frame[4] >= 0x10 for frame in self.frames) < count:
            assert not self.has_ended
            await self.read()
        return [frame for frame in self.frames if frame[4] >= 0x10]

    async def end(self) -> None:
        """Read until the other side closes."""
        while not self.has_ended:
            await self.read()

    async def end_of_bytes(self) -> None:
        """Read until the other side closes, whatever it says."""
        while not self.has_ended:
            await self._receive()

    def reset(self) -> None:
        """Break the connection off."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        self._sock.close()

    async def _receive(self) -> bytes:
        try:
            data = await asyncio.wait_for(self._loop.sock_recv(self._sock, 1 << 16), SECONDS)
        except ConnectionResetError:
            data = b""
        self.has_ended = not data
        return data


@asynccontextmanager
async def raw(address: NetworkAddress, *, host: str = "", **hello: Any) -> AsyncIterator[Raw]:
    """A raw neighbour that has connected, from a host if there is one; with anything for its HELLO, it has greeted."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if host:
        sock.bind((host, 0))
    if hello.pop("is_reading_little", False):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
        peer = Raw(sock)
        if hello:
            await peer.greet(**hello)
        yield peer
    finally:
        sock.close()


# --- daemons as processes: an initiator, a target and what is between them ---

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
PATIENCE = 60.0


def service(name: str, more: str = "", *, queue: str = "Inbox") -> str:
    """Statements for a queue and a service on it."""
    return f"CREATE QUEUE {queue}; CREATE SERVICE [{name}] ON QUEUE {queue}{more};\n"


def route(name: str, to: str, address: str, more: str = "") -> str:
    """The statement for a route."""
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}'{more};\n"


def instance_route(name: str, to: str, instance: str, *addresses: str) -> str:
    """The statement for a route to a broker instance; with two addresses it is a mirrored pair."""
    mirror = "".join(f", MIRROR_ADDRESS = '{address}'" for address in addresses[1:])
    return route(name, to, addresses[0], f", BROKER_INSTANCE = '{instance}'{mirror}")


def shop(
    net: Topology, settings: Mapping[str, Mapping[str, Any]] | None = None, through: str = "", **own: str
) -> tuple[Daemon, Daemon, Daemon]:
    """
    A gateway, an initiator and a target, with routes there and back; not started.

    Args:
        net: Where they are added.
        settings: By name.
        through: The address by which the ends reach the gateway, if it is not its own.
        own: Adds to the scripts, by name.
    """
    settings = settings or {}
    middle = net.add("gateway", forwarding=True, settings=settings.get("gateway"))
    orders, billing = (net.add(name, databases=[name], settings=settings.get(name)) for name in ("orders", "billing"))
    to, back = route("to", BILLING, billing.address), route("back", ORDERS, orders.address)
    net.script("gateway", "msdb", to + back + own.get("gateway", ""))
    for end, here, way, far in ((orders, ORDERS, "to", BILLING), (billing, BILLING, "back", ORDERS)):
        statements = service(here) + route(way, far, through or middle.address)
        net.script(end.name, end.name, statements + own.get(end.name, ""))
    return middle, orders, billing


def long_shop(net: Topology, settings: Mapping[str, Mapping[str, Any]], **own: str) -> tuple[Daemon, Daemon]:
    """As `shop`, with the gateways east and west one behind the other; `own` adds to the scripts of its ends."""
    shared = {key: value for key, value in settings.items() if not key.startswith("databases.")}
    east, west = [net.add(name, forwarding=True, settings=shared) for name in ("east", "west")]
    ends = []
    for name, here, far, hop in (("orders", ORDERS, BILLING, east), ("billing", BILLING, ORDERS, west)):
        database = f"databases.{name}"
        ends.append(net.add(name, databases=[name], settings={**shared, database: settings.get(database, {})}))
        net.script(name, name, service(here) + route("out", far, hop.address) + own.get(name, ""))
    net.script("east", "msdb", route("ToWest", BILLING, west.address) + route("Home", ORDERS, ends[0].address))
    net.script("west", "msdb", route("ToBilling", BILLING, ends[1].address) + route("Back", ORDERS, east.address))
    return ends[0], ends[1]


def file_of(daemon: Daemon | Path) -> Path:
    """The file of a daemon's database, which is called like the daemon; or the file that is given."""
    return daemon if isinstance(daemon, Path) else daemon.directory / f"{daemon.name}.db"


def send(daemon: Daemon | Path, *bodies: str | bytes, to: str = BILLING, **more: Any) -> broker.Dialog:
    """From the service Orders, in a dialog of its own."""
    with closing(sqlite3.connect(file_of(daemon), timeout=PATIENCE)) as db, db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=to, **more)
        for body in bodies:
            dialog.send(body)
    return dialog


def receive_bytes(daemon: Daemon | Path, count: int, answer: str = "") -> list[bytes]:
    """The bodies of so many messages, each batch in a transaction of its own; the last one is answered, if at all."""
    bodies: list[bytes] = []
    with closing(sqlite3.connect(file_of(daemon), timeout=PATIENCE)) as db:
        while len(bodies) < count:
            with db:
                messages = broker.receive(db, queue="Inbox", top=100, wait=PATIENCE)
                bodies += [message.body for message in messages]
                if answer and len(bodies) >= count:
                    messages[-1].dialog.send(answer)
            assert messages, f"only {len(bodies)} of {count} came"
    return bodies


def receive(daemon: Daemon | Path, count: int, answer: str = "") -> list[str]:
    """As `receive_bytes`, as text."""
    return [body.decode() for body in receive_bytes(daemon, count, answer)]


def statuses(daemon: Daemon) -> list[str]:
    """What the transmission queue of a daemon says of each message that waits."""
    rows = daemon.query("SELECT transmission_status FROM sys.transmission_queue", daemon.name)
    return [str(row["transmission_status"]) for row in rows]


def wait_status(daemon: Daemon, words: str) -> None:
    """Until a message that waits says this."""
    wait_for(lambda: words in " ".join(statuses(daemon)), seconds=PATIENCE, what=f"{words!r} as status")


def wait_acknowledged(daemon: Daemon) -> None:
    """Until nothing waits any more."""
    wait_for(lambda: not statuses(daemon), seconds=PATIENCE, what="all acknowledgements")


def get(daemon: Daemon, path: str) -> str:
    """What its observe port answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.observe_port}{path}", timeout=PATIENCE) as response:
        return str(response.read(), "utf-8")


def refused_start(daemon: Daemon) -> tuple[int, str]:
    """The exit code of a daemon that cannot start, and what it says."""
    command = [sys.executable, "-m", "broker", "serve", "-c", str(daemon.config)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode()
