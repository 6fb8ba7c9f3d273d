"""
The cost of a forwarded message: a real daemon over loopback, pinned to one core, the load generator on the other.

Each scenario has separate hops that run in rotation, so that all of them see the same weather: a byte relay that reads
nothing, which is the yardstick; and a gateway for each kernel there is. CPU time is that of the hop's process, user
and system, over what the generator sent in that time.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from bench.figures import CORES, Row, cpu_seconds, forget_peak, peak_mib, pin, row_of, unpin
from bench.generator import PREFIX, Answer, Generator, can_speak_tls, make_generator, service_names, speaks_tls, traffic
from broker.errors import BrokerError
from broker.forwarding.kernels import KERNEL_VARIABLE, KERNELS
from examples.demo.topology import Daemon, free_port, wait_for

# --- certificate ---
# A throw-away certificate for a gateway under measurement, and for its load generator.


LIFE = timedelta(days=90)  # longer than the month before an end that is warned of


def make_pair(directory: Path) -> tuple[Path, Path]:
    """Certificate and key, signed by itself, as PEM files in a directory; their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - LIFE, now + LIFE)
    ).sign(key, SHA256())
    certificate, private_key = directory / "bench.pem", directory / "bench.key"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private_key.touch(mode=0o600)
    private_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private_key


def tls_environ(pair: tuple[Path, Path]) -> dict[str, str]:
    """Return the environment of a gateway that accepts TLS only and asks no peer for a certificate."""
    certificate, private_key = pair
    return {
        "BROKER_ENDPOINT__ENCRYPTION": "required",
        "BROKER_ENDPOINT__CERTIFICATE": str(certificate),
        "BROKER_ENDPOINT__PRIVATE_KEY": str(private_key),
    }


# --- hop ---
# The hop between the load generator's two ends: a gateway, or something that only moves bytes.
#
# Every hop is a separate process that listens on `port` and sends on to `ports`; nothing else about it matters to the
# measurement.


LISTEN_SECONDS = 10.0
_LISTENING = "0A"  # in /proc/net/tcp
RELAY = "byte relay, uvloop"


class FramesLostError(BrokerError):
    """A gateway dropped what it had to forward: the figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Hop:
    """
    A process or group of processes under measurement.

    Attributes:
        pids: All its processes.
        ports: The ports to which it sends on, on 127.0.0.1.
        is_greeting: True if it speaks the protocol.
        daemon: Present if it is a gateway.
    """

    name: str
    pids: tuple[int, ...]
    port: int
    ports: tuple[int, ...]
    is_greeting: bool = False
    daemon: Daemon | None = None

    def check(self) -> None:
        """
        Ask a gateway whether everything went on.

        Raises:
            FramesLostError: something was dropped, or is held still.
        """
        if self.daemon is None:
            return
        status = self.daemon.status()["forwarding"]
        if status["dropped"] or status["held"]:
            raise FramesLostError(f"{self.name}: {status['held']} frames held, dropped: {status['dropped']}")


@contextmanager
def started(*daemons: Daemon) -> Iterator[None]:
    """Start all of them at once, wait until they serve; kill them at the end: their files are discarded."""
    try:
        for one in daemons:
            one.prefix = PREFIX
            one.start(wait=False)
        for one in daemons:
            one.wait_ready()
        yield
    finally:
        for one in daemons:
            if one.is_running:
                one.kill()


@contextmanager
def relay() -> Iterator[Hop]:
    """The relay in this package, which reads nothing."""
    port, to = free_port(), free_port()
    command = [sys.executable, str(Path(__file__).with_name("relay.py")), str(port), str(to)]
    with running(RELAY, command, port, to) as hop:
        yield hop


@contextmanager
def gateway(
    directory: Path,
    name: str,
    services: Sequence[str],
    *,
    next_hops: int,
    environ: Mapping[str, str],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Hop]:
    """A real daemon with a route to each service, which lead to so many next hops in turn."""
    ports = tuple(free_port() for _ in range(next_hops))
    limits = {"connections": 0, "connections_per_peer": 0}  # all of them have the address of one peer
    daemon = Daemon(directory / "gateway", "gateway", forwarding=True, settings={"limits": limits, **(settings or {})})
    daemon.environ.update(environ)
    daemon.script("msdb", route_script(services, ports))
    with started(daemon):
        yield Hop(name, (daemon.pid,), daemon.port, ports, is_greeting=True, daemon=daemon)


def route_script(services: Sequence[str], ports: Sequence[int]) -> str:
    """A route to each service, over the ports in turn."""
    return "".join(
        f"CREATE ROUTE [r{number}] WITH SERVICE_NAME = '{service}',"
        f" ADDRESS = 'tcp://127.0.0.1:{ports[number % len(ports)]}';\n"
        for number, service in enumerate(services)
    )


@contextmanager
def running(name: str, command: Sequence[str], port: int, to: int) -> Iterator[Hop]:
    """
    A program that listens on a port, as a child process; what it connects to may be there only later.

    Raises:
        TimedOutError: it does not listen.
    """
    process = subprocess.Popen(
        [*PREFIX, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: _is_listening(port), seconds=LISTEN_SECONDS, what=f"{name} listens")
        yield Hop(name, (process.pid,), port, (to,))
    finally:
        process.kill()
        process.wait()


def _is_listening(port: int) -> bool:
    rows = (line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines())
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENING for row in rows)


REPEATS = 5
FLOOD_SECONDS = 0.4  # of each measurement
FLOOD_MIN = 20  # messages
WARM_UP_BYTES = 8 * 1024 * 1024
PINGS = 3000
RATE_SECONDS = 1.0
HOP_CORE, GENERATOR_CORE = 0, 1

_NO_TLS = "install OpenSSL's headers, libssl-dev"
FLOOD, PING = "flood", "ping"
Mode = str | int
"""`FLOOD`, `PING`, or messages a second of an open loop."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    A scenario of the measurement.

    Attributes:
        payload: Bytes.
        destinations: Services with a route each, which lead to the ports of the next hops round-robin.
        next_hops: How many ports.
        is_tls: Whether a gateway has TLS on both sides; a hop that only moves bytes moves them as ever.
    """

    payload: int
    destinations: int = 1
    next_hops: int = 1
    connections: int = 1
    modes: tuple[Mode, ...] = (FLOOD,)
    is_tls: bool = False

    @property
    def name(self) -> str:
        """As it is printed and stored."""
        words = [f"{self.payload:,} B"]
        if self.destinations > 1:
            words.append(f"{self.destinations:,} destinations")
        if self.next_hops > 1:
            words.append(f"{self.next_hops} next hops")
        if self.connections > 1:
            words.append(f"{self.connections:,} connections")
        if self.is_tls:
            words.append("TLS")
        return ", ".join(words)


Rival = Callable[[Path], AbstractContextManager[Hop]]
"""(directory for its files) -> another program that moves the same bytes."""

QUICK = (
    Scenario(64),
    Scenario(256, modes=(FLOOD, PING, 20_000)),
    Scenario(1024),
    Scenario(1024, is_tls=True),
    Scenario(16 * 1024),
    Scenario(256 * 1024),
    Scenario(256, destinations=1000, next_hops=4),
    Scenario(256, connections=100),
)
FULL = (
    Scenario(64, modes=(FLOOD, PING, 20_000)),
    Scenario(256, modes=(FLOOD, PING, 5_000, 20_000, 50_000, 100_000, 200_000)),
    Scenario(1024, modes=(FLOOD, PING, 20_000)),
    Scenario(16 * 1024, modes=(FLOOD, PING, 5_000)),
    Scenario(256 * 1024, modes=(FLOOD, PING, 500)),
    Scenario(64, destinations=1000, next_hops=4),
    Scenario(256, destinations=1000),
    Scenario(256, destinations=1000, next_hops=4, modes=(FLOOD, PING, 20_000)),
    Scenario(1024, destinations=1000, next_hops=4),
    Scenario(16 * 1024, destinations=1000, next_hops=4),
    Scenario(256, destinations=100_000),
    Scenario(256, destinations=100_000, next_hops=4),
    Scenario(256, connections=10),
    Scenario(256, connections=100),
    Scenario(256, connections=1000, modes=(FLOOD, 20_000)),
    Scenario(256, destinations=1000, next_hops=4, connections=1000),
    Scenario(256, modes=(FLOOD, PING, 20_000), is_tls=True),
    Scenario(1024, modes=(FLOOD, PING, 20_000), is_tls=True),
    Scenario(16 * 1024, is_tls=True),
    Scenario(256 * 1024, is_tls=True),
    Scenario(256, connections=1000, is_tls=True),
)


def gateways() -> dict[str, dict[str, str]]:
    """Names of the gateways to measure, one for each kernel there is, and what their environment adds."""
    return {f"gateway, {kernel} kernel": {KERNEL_VARIABLE: kernel} for kernel in sorted(KERNELS)}


def notes() -> tuple[str, ...]:
    """Return the notes about this machine that a reader of the figures has to know."""
    told = []
    if not can_speak_tls():
        told.append(f"The load generator was built without TLS ({_NO_TLS}): its rows are missing.")
    if len(CORES) < 2:
        told.append("One core only: hop and load generator share it, so rates and latencies are those of both.")
    return tuple(told)


def measure(
    scenarios: Sequence[Scenario],
    *,
    repeats: int = REPEATS,
    flood_seconds: float = FLOOD_SECONDS,
    rivals: Sequence[Rival] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """
    Return rows of every scenario, mode and hop, the rivals among them; call `tell` with what is measured now.

    Raises:
        GeneratorError: the load generator could not be made, or lost its connection to a hop.
        FramesLostError: a gateway dropped something.
    """
    rows: list[Row] = []
    with generating() as (command, directories):
        for scenario in scenarios:
            if scenario.is_tls and not speaks_tls(command):
                tell(f"{scenario.name}: left out, the load generator has no TLS ({_NO_TLS})")
                continue
            tell(scenario.name)
            rows += _measure(
                scenario, command, next(directories), repeats=repeats, flood_seconds=flood_seconds, rivals=rivals
            )
    return rows


@contextmanager
def generating() -> Iterator[tuple[Sequence[str], Iterator[Path]]]:
    """Yield the command of the load generator, whose core this process has until the end, and a directory per hop."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        stack.callback(unpin, os.getpid())
        command = make_generator(Path(name))
        pin(os.getpid(), GENERATOR_CORE)
        yield command, _directories(Path(name))


def _directories(parent: Path) -> Iterator[Path]:
    for number in count():
        directory = parent / str(number)
        directory.mkdir()
        yield directory


def mode_name(mode: Mode) -> str:
    """As it is printed and stored."""
    return mode if isinstance(mode, str) else f"{mode:,} a second"


def _measure(
    scenario: Scenario,
    command: Sequence[str],
    directory: Path,
    *,
    repeats: int,
    flood_seconds: float,
    rivals: Sequence[Rival],
) -> Iterator[Row]:
    pair = make_pair(directory) if scenario.is_tls else None
    with ExitStack() as stack:
        stations = [
            stack.enter_context(Station(hop, scenario, command, directory, pair))
            for hop in _hops(stack, scenario, directory, pair, rivals)
        ]
        for station in stations:
            station.warm_up(flood_seconds)
        samples: dict[tuple[Mode, str], list[dict[str, float]]] = {}
        for _ in range(repeats):
            for mode in scenario.modes:
                for station in stations:
                    samples.setdefault((mode, station.hop.name), []).append(station.run(mode))
        for station in stations:
            station.hop.check()
    for (mode, hop), taken in samples.items():
        headline = "cpu_us" if mode == FLOOD else "p50_us"
        yield row_of(("forwarding", scenario.name, mode_name(mode), hop), headline, taken, yardstick=RELAY)


def _hops(
    stack: ExitStack,
    scenario: Scenario,
    directory: Path,
    pair: tuple[Path, Path] | None,
    rivals: Sequence[Rival],
) -> Iterator[Hop]:
    yield stack.enter_context(relay())
    for rival in rivals:
        yield stack.enter_context(rival(directory))
    services = service_names(scenario.destinations)
    for number, (name, environ) in enumerate(gateways().items()):
        home = directory / f"gateway-{number}"
        tls = {} if pair is None else tls_environ(pair)
        made = gateway(home, name, services, next_hops=scenario.next_hops, environ=environ | tls)
        yield stack.enter_context(made)


class Station:
    """A hop with its load generator connected to it."""

    def __init__(
        self,
        hop: Hop,
        scenario: Scenario,
        command: Sequence[str],
        directory: Path,
        pair: tuple[Path, Path] | None = None,
    ) -> None:
        self.hop = hop
        self._flood_count = 0
        services = service_names(scenario.destinations)
        made = traffic(services, scenario.payload, connections=scenario.connections, listeners=len(hop.ports))
        self._frame_bytes, self._frames = made.frame_bytes, len(made.frames) // made.frame_bytes
        self._generator = Generator(
            command,
            directory,
            made,
            port=hop.port,
            connections=scenario.connections,
            listen=hop.ports,
            is_greeting=hop.is_greeting,
            pair=pair if hop.is_greeting else None,
        )
        self._pids = hop.pids
        for pid in hop.pids:
            pin(pid, HOP_CORE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._generator.close()

    def warm_up(self, flood_seconds: float) -> None:
        """Connect everything, fill the caches, and find out how many messages make a flood of so many seconds."""
        count = max(FLOOD_MIN, WARM_UP_BYTES // self._frame_bytes, self._frames)
        self._generator.flood(count)
        told = self._generator.flood(count)
        self._flood_count = max(FLOOD_MIN, int(count / told["seconds"] * flood_seconds))

    def flood(self, count: int) -> Answer:
        """So many messages as fast as the hop takes them."""
        return self._generator.flood(count)

    def run(self, mode: Mode) -> dict[str, float]:
        """One measurement."""
        for pid in self._pids:
            forget_peak(pid)
        before = sum(map(cpu_seconds, self._pids))
        if mode == FLOOD:
            told = self._generator.flood(self._flood_count)
        elif mode == PING:
            told = self._generator.ping(PINGS)
        else:
            told = self._generator.rate(int(int(mode) * RATE_SECONDS), float(mode))
        messages = told.pop("messages")
        busy = sum(map(cpu_seconds, self._pids)) - before
        generator_busy, seconds = told.pop("cpu_seconds"), told.pop("seconds")
        values = {"cpu_us": busy / messages * 1e6, "messages_s": messages / seconds}
        if mode == FLOOD:  # in the other modes the generator never sleeps
            values["mib_s"] = messages * self._frame_bytes / seconds / 2**20
            values["generator_us"] = generator_busy / messages * 1e6
        return values | {"peak_mib": sum(map(peak_mib, self._pids))} | told
