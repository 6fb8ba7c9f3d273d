"""
What changes cost while a gateway forwards: pairs of windows on one daemon, without and with ten changes a second.

In both windows of a pair the load generator floods the gateway with frames to all destinations, so the ratio of the CPU
time for each message is what the changes cost, their statements included. These are sent as plain bytes over one open
connection to the admin socket: a client that computes shares the core of the load generator, whose receiver then falls
behind, and the gateway holds frames for it. Besides: a start with destinations of which none is known, a miss of the
walk without sockets, and a statement on a gateway that is idle otherwise.
"""

import json
import math
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from bench.figures import Row, cpu_seconds, row_of
from bench.forwarding import FLOOD, Hop, Scenario, Station, gateway, generating
from bench.generator import frames, hello, service_names
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import KERNELS
from broker.forwarding.pool import Limits
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Header, Hello, Probe, ProbeReply, decode_link, encode_dialog, encode_link
from broker.protocol.layout import FIRST_DIALOG_KIND, KIND_AT, MAX_FRAME, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import OPEN
from examples.demo.topology import free_port, wait_for

DESTINATIONS = (10_000, 100_000)  # the second one with --full
NEXT_HOPS = 4
PAYLOAD = 256
CHANGES_S = 10
PAIRS, FULL_PAIRS = 5, 20
WINDOW_SECONDS = 2.0
STARTS, FULL_STARTS = 1, 5
FIRST = 1_000_000  # messages after a start
STATEMENTS = 100
ROUNDS = 7
EXPIRING = 10  # routes that expire a second after each was made to
PEER, PAIR = "//bench/peer", "//bench/pair"
INSTANCE = UUID(int=7)

Change = Callable[["Site", int], None]
"""One change, the number it has: every second one may undo the one before."""


@dataclass
class Site:
    """A gateway under load, and what is around it."""

    hop: Hop
    destinations: int
    peer_address: str
    partners: "tuple[Partner, Partner]"
    admin: socket.socket | None = None  # while changes are under way: the daemon closes it when it rests
    peer: socket.socket | None = None
    done: dict[str, int] = field(default_factory=dict)  # changes so far, by name

    def say(self, statement: str) -> None:
        """Carry out a statement; raises RuntimeError with the answer when it is refused."""
        answer = self.ask("POST /v1/sql", json.dumps({"statement": statement}))
        if b" 200 " not in answer[:16]:
            raise RuntimeError(answer.decode())

    def ask(self, what: str, body: str = "") -> bytes:
        """Return the answer of the admin socket."""
        head = f"{what} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length:"
        assert self.admin is not None
        self.admin.sendall(f"{head} {len(body)}\r\n\r\n{body}".encode())
        return self.admin.recv(1 << 16)

    def lag_ms(self) -> float:
        """By how much the loop was late at worst in the last 15 seconds, as the metric says."""
        assert self.hop.daemon is not None
        url = f"http://127.0.0.1:{self.hop.daemon.observe_port}/metrics"
        with urllib.request.urlopen(url) as response:
            lines = response.read().decode().splitlines()
        return next(1e3 * float(line.split()[1]) for line in lines if line.startswith("broker_event_loop_lag_seconds "))


# --- the changes ---


def _lifetime(site: Site, number: int) -> None:
    site.say(f"ALTER ROUTE [r7] WITH LIFETIME = {1_000_000 + number}")


def _nothing(site: Site, _number: int) -> None:
    site.ask("GET /nothing")


def _made_and_dropped(site: Site, number: int) -> None:
    made = f"CREATE ROUTE [extra] WITH SERVICE_NAME = '//bench/extra', ADDRESS = '{site.peer_address}'"
    site.say("DROP ROUTE [extra]" if number % 2 else made)


def _address(site: Site, number: int) -> None:
    site.say(f"ALTER ROUTE [r7] WITH ADDRESS = 'tcp://127.0.0.1:{site.hop.ports[number % 2]}'")


def _lifetimes_in_turn(site: Site, number: int) -> None:
    site.say(f"ALTER ROUTE [r{number % site.destinations}] WITH LIFETIME = {1_000_000 + number}")


def _expiring(site: Site, number: int) -> None:
    if not number % 2:  # the other half are those that expire
        site.say(f"ALTER ROUTE [e{number // 2 % EXPIRING}] WITH LIFETIME = 1")


def _peer(site: Site, _number: int) -> None:
    if site.peer is not None:
        site.peer.close()
        site.peer = None
        return
    site.peer = socket.create_connection(("127.0.0.1", site.hop.port))
    addresses = (site.peer_address,)
    site.peer.sendall(encode_link(Hello(instance=uuid4().bytes, arbitration=uuid4().bytes, addresses=addresses)))


def _failover(site: Site, number: int) -> None:
    site.partners[number % 2].claim(epoch=number + 2)


CHANGES: dict[str, Change] = {
    "the lifetime of one route": _lifetime,
    "a route made and dropped": _made_and_dropped,
    "the address of a route": _address,
    "lifetimes in turn": _lifetimes_in_turn,
    "routes that expire": _expiring,
    "a peer that comes and goes": _peer,
    "a mirrored pair that fails over and back": _failover,
}


class Partner:
    """One partner of a mirrored pair: says HELLO, answers probes, and claims when it is told to."""

    def __init__(self, role: str) -> None:
        self.port = free_port()
        self._role = role
        self._link: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def claim(self, epoch: int) -> None:
        """To be the principal now."""
        assert self._link is not None
        self._link.sendall(encode_link(ProbeReply(0, INSTANCE.bytes, "principal", epoch)))

    def close(self) -> None:
        """End it."""
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                link.sendall(hello())
                threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        decoder = FrameDecoder(MAX_FRAME)
        while data := link.recv(1 << 16):
            for frame in decoder.feed(data):
                asked = decode_link(frame) if frame[KIND_AT] < FIRST_DIALOG_KIND else None
                if isinstance(asked, Probe):
                    link.sendall(encode_link(ProbeReply(asked.id, asked.broker_instance, self._role, 1)))
                    self._link = link


@contextmanager
def _site(directory: Path, destinations: int) -> Iterator[Site]:
    """A gateway that knows all of it, and has forwarded a frame to the peer and to the pair."""
    peer_address, partners = f"tcp://127.0.0.1:{free_port()}", (Partner("principal"), Partner("mirror"))
    with ExitStack() as stack:
        hop = stack.enter_context(
            gateway(directory, "gateway", service_names(destinations), next_hops=NEXT_HOPS, environ={})
        )
        assert hop.daemon is not None
        site = Site(hop, destinations, peer_address, partners)
        first, second = (f"tcp://127.0.0.1:{partner.port}" for partner in partners)
        expiring = (
            f"CREATE ROUTE [e{n}] WITH SERVICE_NAME = '//bench/e{n}', ADDRESS = '{first}';" for n in range(EXPIRING)
        )
        hop.daemon.admin.sql(
            f"CREATE ROUTE [peer] WITH SERVICE_NAME = '{PEER}', ADDRESS = '{peer_address}';"
            f"CREATE ROUTE [pair] WITH SERVICE_NAME = '{PAIR}', BROKER_INSTANCE = '{INSTANCE}', ADDRESS = '{first}',"
            f" MIRROR_ADDRESS = '{second}'; {' '.join(expiring)}"
        )
        sender = stack.enter_context(socket.create_connection(("127.0.0.1", hop.port)))
        sender.sendall(hello() + b"".join(_frame(service) for service in (PEER, PAIR)))
        wait_for(lambda: all(partner._link for partner in partners), seconds=10, what="both partners asked")  # noqa: SLF001
        try:
            yield site
        finally:
            for partner in partners:
                partner.close()


def _frame(service: str) -> bytes:
    header = Header(
        kind=FrameKind.MESSAGE,
        flags=0,
        message_id=uuid4().bytes,
        conversation_id=uuid4().bytes,
        to_service=service,
        from_service="//bench/initiator",
        from_broker_instance=uuid4().bytes,
        to_broker_instance=INSTANCE.bytes if service == PAIR else bytes(16),
    )
    return encode_dialog(header, b"")


@contextmanager
def _changing(site: Site, name: str, change: Change | None, *, rate: float = CHANGES_S) -> Iterator[None]:
    """So many changes a second, until the end."""
    is_over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        assert site.hop.daemon is not None
        try:
            site.admin = socket.socket(socket.AF_UNIX)
            site.admin.connect(str(site.hop.daemon.directory / "admin.sock"))
            while change is not None and not is_over.wait(1 / rate):
                number = site.done[name] = site.done.get(name, -1) + 1
                change(site, number)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if site.admin is not None:
            site.admin.close()
    if failed:
        raise failed[0]


def measure(*, is_full: bool = False, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Rows of each change and number of destinations, of starts, misses and a statement."""
    rows: list[Row] = []
    with generating() as (command, directories):
        for destinations in DESTINATIONS[: 1 + is_full]:
            scenario = Scenario(PAYLOAD, destinations=destinations, next_hops=NEXT_HOPS)
            with (
                _site(next(directories), destinations) as site,
                Station(site.hop, scenario, command, next(directories)) as station,
            ):
                station.warm_up(WINDOW_SECONDS)
                for name, change in CHANGES.items():
                    tell(f"{scenario.name}, {name}")
                    samples = [_pair(station, site, name, change) for _ in range(FULL_PAIRS if is_full else PAIRS)]
                    rows.append(_row(scenario.name, f"flood, {CHANGES_S} changes a second", name, "ratio", samples))
        for destinations in DESTINATIONS:
            tell(f"{destinations:,} destinations, starts and misses")
            samples = [_start(command, directories, destinations) for _ in range(FULL_STARTS if is_full else STARTS)]
            rows.append(_row(f"{destinations:,} destinations", "a start", f"first {FIRST:,}", "seconds", samples))
            rows += [_misses(kernel, destinations) for kernel in KERNELS]
        tell("a statement")
        with _site(next(directories), DESTINATIONS[0]) as site:
            rows += _statements(site)
    return rows


def _pair(station: Station, site: Site, name: str, change: Change) -> dict[str, float]:
    """Two windows, one after the other."""
    spent = []
    for one in (None, change):
        with _changing(site, name, one):
            spent.append(station.run(FLOOD)["cpu_us"])
    without, cpu_us = spent
    return {"ratio": cpu_us / without, "cpu_us": cpu_us, "without_us": without, "lag_ms": site.lag_ms()}


def _start(command: Sequence[str], directories: Iterator[Path], destinations: int) -> dict[str, float]:
    """What the first seconds after a start carry, when no destination is known."""
    with gateway(next(directories), "gateway", service_names(destinations), next_hops=NEXT_HOPS, environ={}) as hop:
        scenario = Scenario(PAYLOAD, destinations=destinations, next_hops=NEXT_HOPS)
        with Station(hop, scenario, command, next(directories)) as station:
            before = cpu_seconds(hop.pids[0])
            seconds = station.flood(FIRST)["seconds"]
            return {"seconds": seconds, "cpu": cpu_seconds(hop.pids[0]) - before}


def _misses(kernel: str, destinations: int) -> Row:
    """The walk, without sockets, of frames to destinations of which none is known."""
    forwarder = Forwarder(
        Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
        deliver=lambda *_: None,
        request_link=lambda _: None,
        health_of=lambda _: AddressHealth.CONNECTED,
        kernel=KERNELS[kernel],
    )
    names = service_names(destinations)
    routes = [Route(name, NetworkAddress("127.0.0.1", 5000 + n % NEXT_HOPS), name) for n, name in enumerate(names)]
    forwarder.set_routing(table=build_table(routes, now=datetime.now(UTC)), hosted=Hosted(), is_forwarding=True)
    data = frames(names, PAYLOAD, count=destinations)
    samples = []
    for _ in range(ROUNDS):
        forwarder.forget_decisions()
        walk, left, spent = forwarder._kernels.of(OPEN).walk, memoryview(data), 0.0  # noqa: SLF001 - without the sinks
        while left:
            slab = bytearray(left[: 640 * len(data) // destinations])
            begun = time.process_time()
            batch = walk(slab, len(slab))
            spent += time.process_time() - begun
            left = left[batch.consumed :]
            for sink in batch.touched:
                sink.runs.clear()
        samples.append({"cpu_us": spent / destinations * 1e6})
    return _row(f"{destinations:,} destinations", "a miss", f"{kernel} kernel", "cpu_us", samples)


def _statements(site: Site) -> list[Row]:
    """
    A change on a gateway that forwards nothing, and a request that finds nothing there.

    The figure is all its CPU time, less what it takes in the same time without.
    """
    subjects = {"a request that finds nothing": _nothing, "the lifetime of one route": _lifetime}
    pid = site.hop.pids[0]
    rows = []
    for mode, rate in ((f"{CHANGES_S} statements a second", CHANGES_S), ("statements one after another", math.inf)):
        spent = {}
        for subject, change in {"": None, **subjects}.items():
            before = cpu_seconds(pid)
            with _changing(site, f"{mode}, {subject}", change, rate=rate):
                time.sleep(STATEMENTS / CHANGES_S)
            spent[subject] = cpu_seconds(pid) - before
        for subject in subjects:
            sample = {"cpu_ms": 1e3 * (spent[subject] - spent[""]) / (site.done[f"{mode}, {subject}"] + 1)}
            rows.append(_row("idle gateway", mode, subject, "cpu_ms", [sample]))
    return rows


def _row(case: str, mode: str, subject: str, headline: str, samples: Sequence[dict[str, float]]) -> Row:
    return row_of(("change", case, mode, subject), headline, samples, yardstick="")
