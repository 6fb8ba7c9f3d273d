"""
Saturation: offered load is stepped up until it is too much, once through a gateway and once from end to end.

What the knee is, `bench.scenarios.knee` says. Through a gateway a message of 256 bytes is in time within 20 ms;
beside it, as the yardstick, the same through a byte relay that reads nothing. From end to end a message of 1 KiB is in
time within 500 ms of the moment at which it was due, from one application's database through its daemon, a gateway and
the target's daemon to the end of RECEIVE; both ends keep it on the disk (`synchronous=FULL`). Beside it, as the
yardstick, the same rows into a plain SQLite table as fast as it takes them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.dialogs import YARDSTICK, Ends, ends, plain_sqlite
from bench.figures import Row, cpu_seconds
from bench.forwarding import RELAY, Hop, gateway, generating, relay
from bench.generator import service_names
from bench.scenarios.knee import ATTEMPTS, Knee, Step, find_knee
from bench.scenarios.loaded_hop import CONNECTIONS, DESTINATIONS, NEXT_HOPS, PAYLOAD, LoadedHop
from bench.scenarios.timetable import BATCH, Application, offer, quantile, witness

GATEWAY = "gateway"
GATEWAY_CASE = f"{PAYLOAD} B, {CONNECTIONS} connections"
GATEWAY_START, GATEWAY_MOST = 5_000.0, 50e6  # messages a second
DIALOG_CASE = "1 KiB, durable at both ends, 8 dialogs"
DIALOG_START, DIALOG_MOST = 50.0, 1e6
DIALOGS = 8
DRAIN_SECONDS = 300.0  # for what is under way behind a step
YARDSTICK_ROWS = 5_000
END_TO_END = "end to end"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """
    Shape: seconds of a step through a gateway, and of one from end to end; `refinements` of a knee; `gateway_limit` and
    `dialog_limit` seconds within which an arrival is in time; how often a step may fail.
    """

    gateway_seconds: float
    dialog_seconds: float
    refinements: int
    gateway_limit: float = 0.02
    dialog_limit: float = 0.5
    attempts: int = ATTEMPTS


QUICK = Scale(0.5, 2.0, 3)
FULL = Scale(3.0, 10.0, 4)


def measure(scale: Scale, *, tell: Tell = lambda _: None) -> list[Row]:
    """
    Rows of every step, and of the knees beside their yardsticks.

    Raises:
        NoKneeError: the machine is too busy, or the load generator too slow, to find one.
        GeneratorError: the load generator could not be made, or lost its connection.
        FramesLostError: the gateway dropped something.
        ApplicationError: an application ended, or did not get its messages.
    """
    rows: list[Row] = []
    with generating() as (command, directories):
        for name, hop in ((RELAY, _relay), (GATEWAY, loaded_gateway)):
            with hop(next(directories)) as made, LoadedHop(made, command, next(directories)) as loaded:
                rows += rows_of(GATEWAY_CASE, name, find_gateway_knee(loaded, scale, name, tell), yardstick=RELAY)
                made.check()
    with ends() as net:
        rows += dialog_rows(net, scale, tell=tell)
    return sorted(rows, key=lambda row: row.mode == "knee")


def dialog_rows(net: Ends, scale: Scale, *, tell: Tell = lambda _: None) -> list[Row]:
    """Those from end to end, with their yardstick. Raises NoKneeError and ApplicationError, as `measure`."""
    rows = rows_of(DIALOG_CASE, END_TO_END, _find_dialog_knee(net, scale, tell), yardstick=YARDSTICK)
    plain = {"messages_s": plain_sqlite(YARDSTICK_ROWS, batch=BATCH)["rows_s"]}
    return [*rows, Row("saturation", DIALOG_CASE, "knee", YARDSTICK, "messages_s", plain, is_yardstick=True)]


def rows_of(case: str, name: str, knee: Knee, *, yardstick: str) -> list[Row]:
    """A row of each step, and one of the knee."""
    steps = [
        Row("saturation", case, f"steps, {name}", f"{step.offered_s:,.0f} a second", "p99_us", step.values)
        for step in knee.steps
    ]
    values = knee.at.values | {"messages_s": knee.at.offered_s}
    return [*steps, Row("saturation", case, "knee", name, "messages_s", values, is_yardstick=name == yardstick)]


def find_gateway_knee(loaded: LoadedHop, scale: Scale, name: str, tell: Tell) -> Knee:
    """Where a hop has its knee, after a warm-up. Raises NoKneeError."""

    def measure_step(offered_s: float) -> Step:
        step = loaded.step(offered_s, scale.gateway_seconds, limit=scale.gateway_limit)
        tell(f"{name}: {offered_s:,.0f} messages a second, {step.in_time:.1%} in time")
        return step

    loaded.step(GATEWAY_START, scale.gateway_seconds, limit=scale.gateway_limit)
    return find_knee(
        measure_step, start=GATEWAY_START, most=GATEWAY_MOST, refinements=scale.refinements, attempts=scale.attempts
    )


@contextmanager
def loaded_gateway(directory: Path) -> Iterator[Hop]:
    """The gateway under load, with routes to all services."""
    with gateway(directory, GATEWAY, service_names(DESTINATIONS), next_hops=NEXT_HOPS, environ={}) as hop:
        yield hop


@contextmanager
def _relay(_directory: Path) -> Iterator[Hop]:
    with relay() as hop:
        yield hop


def _find_dialog_knee(net: Ends, scale: Scale, tell: Tell) -> Knee:
    """Where the whole way of a dialog has its knee, after a warm-up."""
    with Application(offer, str(net.orders), DIALOGS) as source, Application(witness, str(net.billing)) as far:
        way = _Way(net, source, far)

        def measure_step(offered_s: float) -> Step:
            step = way.step(offered_s, scale.dialog_seconds, limit=scale.dialog_limit)
            tell(f"{END_TO_END}: {offered_s:,.0f} messages a second, {step.in_time:.1%} in time")
            return step

        measure_step(DIALOG_START)
        return find_knee(
            measure_step, start=DIALOG_START, most=DIALOG_MOST, refinements=scale.refinements, attempts=scale.attempts
        )


class _Way:
    """From application to application, with everything on it."""

    def __init__(self, net: Ends, source: Application, far: Application) -> None:
        self._source, self._far = source, far
        self._numbers = count(1)
        self._pids = {
            "sending_us": source.pid,
            "sender_us": net.sender.pid,
            "gateway_us": net.gateway.pid,
            "target_us": net.target.pid,
            "receiving_us": far.pid,
        }

    def step(self, offered_s: float, seconds: float, *, limit: float) -> Step:
        """Offer so many messages a second for so long, and wait until all of them were received."""
        number, before = next(self._numbers), self._busy()
        sent = self._source.ask(number, offered_s, seconds, seconds=DRAIN_SECONDS)
        latencies = sorted(self._far.ask(number, sent, seconds=DRAIN_SECONDS))
        in_time = sum(one <= limit for one in latencies) / max(1, int(offered_s * seconds))
        values = {
            "offered_s": offered_s,
            "in_time_pct": 100 * in_time,
            "p50_us": 1e6 * quantile(latencies, 0.5),
            "p99_us": 1e6 * quantile(latencies, 0.99),
        }
        spent = {name: (after - before[name]) / max(1, sent) * 1e6 for name, after in self._busy().items()}
        return Step(offered_s, in_time, values | {"cpu_us": sum(spent.values())} | spent)

    def _busy(self) -> dict[str, float]:
        """CPU seconds of each process so far."""
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}
