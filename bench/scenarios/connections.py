"""
Connections: what ten thousand idle ones cost a gateway, and what a lone frame feels of them and of a thousand busy.

The idle ones come from several addresses, have said HELLO and answer PINGs; the busy ones carry an open loop of
messages between them. In each of three states (no other, idle ones, idle and busy ones) it reports how much memory the
gateway has, how busy it is and how late its loop was, and how long a frame takes that is alone on a connection of its
own. How PINGs are spread shows in the most of them within a tenth of a second, beside the mean. Generators share one
core: while the busy one runs, a lone frame now and then waits for it and not for the gateway.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Row, cpu_seconds, pin, resident_mib
from bench.forwarding import GENERATOR_CORE, HOP_CORE, Hop, gateway, generating
from bench.generator import PREFIX, Answer, Generator, GeneratorError, service_names, traffic
from bench.scenarios.idle import allow_descriptors

PAYLOAD = 256
PINGS = 2_000  # of the lone frame, in each state
HERTZ = 20_000.0  # messages a second of all busy ones together
LIMIT_SECONDS = 0.05
GATEWAY_SPARE = 512  # descriptors of the gateway that are not for these
_LAG = "broker_event_loop_lag_seconds "

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """Shape: numbers of connections; `seconds` that each state is watched; `heartbeat` as of the configuration."""

    idle: int
    busy: int
    seconds: float
    heartbeat: str


QUICK = Scale(idle=500, busy=100, seconds=4.0, heartbeat="2s")
FULL = Scale(idle=10_000, busy=1_000, seconds=60.0, heartbeat="15s")


def measure(scale: Scale, *, tell: Tell = lambda _: None) -> list[Row]:
    """
    A row of each state.

    Raises:
        TooFewDescriptorsError: the system does not allow so many connections.
        GeneratorError: a generator could not be made, or lost a connection.
        FramesLostError: the gateway dropped something.
    """
    allow_descriptors(scale.idle + scale.busy + GATEWAY_SPARE)
    with generating() as (command, directories), _gateway(next(directories), scale.heartbeat) as hop:
        case = f"{scale.idle:,} idle and {scale.busy:,} busy connections, heartbeat {scale.heartbeat}"
        with _generator(command, next(directories), hop, port=1, connections=1) as lone:
            state = _State(hop, lone, case)
            tell("no other connection")
            rows = [state.row("no other", scale.seconds)]
            with _crowd(hop.port) as crowd:
                tell(f"{scale.idle:,} idle connections")
                opened = crowd.ask(f"open {scale.idle}")
                rows.append(state.row(f"{scale.idle:,} idle", scale.seconds, crowd=crowd, opened=opened))
                tell(f"{scale.busy:,} busy connections beside them")
                with _generator(command, next(directories), hop, port=0, connections=scale.busy) as busy:
                    rows.append(
                        state.row(f"{scale.busy:,} busy and {scale.idle:,} idle", scale.seconds, crowd=crowd, busy=busy)
                    )
                    hop.check()
    return rows


class _Crowd:
    """The process of the idle ones."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [*PREFIX, sys.executable, "-m", "bench.scenarios.idle", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def say(self, line: str) -> None:
        """One line; `answer` takes what comes of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def answer(self) -> dict[str, float]:
        """Raises GeneratorError when it has ended, with its last words."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise GeneratorError(self.process.stderr.read().strip() or "the idle connections ended without a word")
        told: dict[str, float] = json.loads(line)
        return told

    def ask(self, line: str) -> dict[str, float]:
        """One line and what comes of it."""
        self.say(line)
        return self.answer()


@contextmanager
def _crowd(port: int) -> Iterator[_Crowd]:
    crowd = _Crowd(port)
    try:
        pin(crowd.process.pid, GENERATOR_CORE)
        yield crowd
    finally:
        crowd.process.kill()
        crowd.process.communicate()


@contextmanager
def _gateway(directory: Path, heartbeat: str) -> Iterator[Hop]:
    settings: dict[str, dict[str, Any]] = {"endpoint": {"heartbeat": heartbeat}}
    with gateway(directory, "gateway", service_names(2), next_hops=2, environ={}, settings=settings) as hop:
        [pid] = hop.pids
        pin(pid, HOP_CORE)
        yield hop


@contextmanager
def _generator(
    command: Sequence[str], directory: Path, hop: Hop, *, port: int, connections: int
) -> Iterator[Generator]:
    """To the service behind one of the ports."""
    made = traffic(service_names(2)[port : port + 1], PAYLOAD, connections=connections, listeners=1)
    with Generator(
        command,
        directory,
        made,
        port=hop.port,
        connections=connections,
        listen=hop.ports[port : port + 1],
        is_greeting=True,
        is_sleeping=True,
    ) as generator:
        yield generator


class _State:
    """The gateway, looked at in one state after the other."""

    def __init__(self, hop: Hop, lone: Generator, case: str) -> None:
        assert hop.daemon is not None
        [self._pid] = hop.pids
        self._daemon, self._lone, self._case = hop.daemon, lone, case
        self._before_mib = 0.0

    def row(
        self,
        name: str,
        seconds: float,
        *,
        crowd: _Crowd | None = None,
        opened: dict[str, float] | None = None,
        busy: Generator | None = None,
    ) -> Row:
        """Watch it for so long, then send the lone frames, under the same load."""
        before, started = cpu_seconds(self._pid), time.monotonic()
        pings, told = self._watched(seconds, crowd, busy)
        share = (cpu_seconds(self._pid) - before) / (time.monotonic() - started)
        values = {"resident_mib": resident_mib(self._pid), "busy_pct": 100 * share, "lag_ms": self._lag_ms()}
        if opened is not None:
            values["connect_s"] = opened["connections"] / opened["seconds"]
            values["kib_each"] = 1024 * (values["resident_mib"] - self._before_mib) / opened["connections"]
        self._before_mib = self._before_mib or values["resident_mib"]
        if crowd is not None:
            values |= {"pings_s": pings["pings"] / seconds, "pings_most": pings["most"]}
        if busy is not None:
            values |= {"messages_s": told["arrived"] / told["seconds"], "busy_p99_us": told["p99_us"]}
        lone = self._lone_frame(seconds, busy)
        values |= {key: lone[key] for key in ("p50_us", "p99_us", "max_us")}
        return Row("connections", self._case, "states", name, "p50_us", values)

    def _watched(self, seconds: float, crowd: _Crowd | None, busy: Generator | None) -> tuple[Answer, Answer]:
        if crowd is not None:
            crowd.say(f"watch {seconds}")
        told = {} if busy is None else busy.offer(seconds, HERTZ, limit=LIMIT_SECONDS, rest=1.0)
        if crowd is None:
            time.sleep(seconds)
            return {}, told
        return crowd.answer(), told

    def _lone_frame(self, seconds: float, busy: Generator | None) -> Answer:
        """Beside the busy ones, if there are any, which go on until it is done."""
        if busy is None:
            return self._lone.ping(PINGS)
        with busy.offering(seconds, HERTZ, limit=LIMIT_SECONDS, rest=1.0):
            return self._lone.ping(PINGS)

    def _lag_ms(self) -> float:
        """By how much the loop was late at worst in the last 15 s."""
        url = f"http://127.0.0.1:{self._daemon.observe_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return 1000 * float(next(line for line in lines if line.startswith(_LAG)).removeprefix(_LAG))
