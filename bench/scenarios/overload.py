"""
Overload: a gateway at three times its knee, for whom one of two next hops is too slow.

The knee is found first (`bench.scenarios.saturation`), on the same gateway. Then three times as much is offered, half
of it to a next hop that reads as fast as it can, half to one that reads half as much as came to it at the knee. What
became of all of it is told by reason: refused at the door, where the gateway reads no faster and the connection is
full; dropped by the gateway; arrived. Every window tells how much memory the gateway has, how much of its pool is
taken, and how long admitted messages took from the moment at which they were due, those behind the slow next hop by
themselves. Afterwards a light load goes on: the gateway has recovered when its pool is empty and the median is within a
fifth of what it was before.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.figures import Row, forget_peak, peak_mib, resident_mib
from bench.forwarding import generating
from bench.generator import Answer
from bench.scenarios.loaded_hop import CONNECTIONS, NEXT_HOPS, PAYLOAD, REST_SECONDS, LoadedHop
from bench.scenarios.saturation import QUICK, Scale, find_gateway_knee, loaded_gateway
from broker.errors import BrokerError
from broker.forwarding.pool import READ_BYTES, UNFINISHED_MAX_BYTES
from broker.net.link import CONTROL_MAX_BYTES
from examples.demo.topology import TimedOutError

SECONDS, FULL_SECONDS = 10.0, 600.0
TIMES = 3.0  # of the knee
SLOW_PART = 1 / 4  # of the knee that the slow next hop reads: half of what came to it there
WINDOWS = 20  # that are told at most, however long it goes on
WINDOW_SECONDS = 1.0  # of each at least
LIGHT_PART = 1 / 20  # of the knee, before and afterwards
LIGHT_SECONDS, LIGHT_WINDOWS = 0.25, 8
IN_TIME = 0.99  # of a light load, as at the knee
NEAR = 1.2  # of the median before
RECOVERY_SECONDS = 10.0  # that it may take
PATIENCE = 60.0
ALLOWANCE_MIB = 16.0  # for what is no message: objects, and what the allocator keeps
MAX_FRAME = 1 << 20  # the default
BENCH, OF_WINDOWS, OF_RECOVERY = "overload", "windows", "recovery"  # what rows are called
IN_TIME_AGAIN, ALLOWED = "light load in time", "allowed"  # subjects of the recovery, seconds each
CASE = f"{PAYLOAD} B, {CONNECTIONS} connections, {TIMES:g} times the knee, a slow next hop"
MIB = 2.0**20

Tell = Callable[[str], None]


class UnaccountedError(BrokerError):
    """Messages were admitted, and neither arrived nor were told as dropped."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """
    Shape: seconds from the end of the load until `emptied`, the pool was empty; until `in_time`, a light load arrived
    in time as well; until `near`, its median was `NEAR`, None when it was not within `PATIENCE`. Medians in
    microseconds, `before_us` and `after_us`, the last one.
    """

    emptied: float
    in_time: float
    near: float | None
    before_us: float
    after_us: float


def memory_limit_mib(before_mib: float, *, links: int, pool_bytes: int, max_frame: int = MAX_FRAME) -> float:
    """
    What a gateway may have: what it had, and all that messages may take.

    Source: docs/how-it-works.md, "How much memory do messages take?".
    """
    messages = links * (max_frame + CONTROL_MAX_BYTES) + UNFINISHED_MAX_BYTES + pool_bytes + 2 * max_frame + READ_BYTES
    return before_mib + messages / MIB + ALLOWANCE_MIB


def broken_bounds(rows: Iterable[Row]) -> list[str]:
    """What of all that was measured is worse than it may be: memory above its limit, a recovery that took too long."""
    own = [row for row in rows if row.bench == BENCH]
    peaks = [(row.subject, row.values["peak_mib"], row.values["limit_mib"]) for row in own if row.mode == OF_WINDOWS]
    found = [
        f"{window}: {peak:.1f} MiB resident, above the limit of {limit:.1f} MiB"
        for window, peak, limit in peaks
        if peak > limit
    ]
    recovery = {row.subject: row.values for row in own if row.mode == OF_RECOVERY}
    if recovery and (took := recovery[IN_TIME_AGAIN]["seconds"]) > (allowed := recovery[ALLOWED]["seconds"]):
        found.append(f"recovered after {took:.1f} s: {allowed:g} s are allowed")
    return [f"{BENCH}: {sentence}" for sentence in found]


def measure(
    *, seconds: float, scale: Scale = QUICK, knee: float | None = None, tell: Tell = lambda _: None
) -> list[Row]:
    """
    Rows of the windows, of what was refused and dropped, and of the recovery.

    Args:
        seconds: How long the load goes on.
        scale: How the knee is found.
        knee: Messages a second, where it is known.
        tell: Hears what is measured now.

    Raises:
        NoKneeError, GeneratorError: as for saturation.
        UnaccountedError: something was admitted, and nobody tells what became of it.
        TimedOutError: it did not recover within `PATIENCE`.
    """
    with (
        generating() as (command, directories),
        loaded_gateway(next(directories)) as hop,
        LoadedHop(hop, command, next(directories)) as loaded,
    ):
        knee = knee or find_gateway_knee(loaded, scale, "gateway", tell).at.offered_s
        load = _Load(loaded, knee, limit=scale.gateway_limit)
        light_us = load.light()
        tell(f"{TIMES * knee:,.0f} messages a second, {TIMES:g} times the knee, for {seconds:g} s")
        windows = list(load.offer(seconds))
        tell("recovery")
        recovery = load.recover(light_us)
        return [*windows, *load.rows(), *_recovery_rows(recovery)]


class _Load:
    """What is offered, and what became of it. Shape: `knee` messages a second."""

    def __init__(self, loaded: LoadedHop, knee: float, *, limit: float) -> None:
        assert loaded.hop.daemon is not None
        self._daemon, self._hop, self._knee, self._limit = loaded.hop.daemon, loaded, knee, limit
        [self._pid] = loaded.hop.pids
        self._generator = loaded.generator
        self._before_mib = resident_mib(self._pid)
        self._counts: Counter[str] = Counter()
        self._dropped_before = self._settle()  # what the search for the knee has left behind
        self._counts.clear()
        self._dropped: dict[str, int] = {}
        self._limit_mib = memory_limit_mib(
            self._before_mib,
            links=CONNECTIONS + NEXT_HOPS,
            pool_bytes=self._forwarding()["pool_limit_bytes"],
        )

    def light(self) -> float:
        """The median of a light load, microseconds."""
        return statistics.median(self._light_window()["p50_us"] for _ in range(LIGHT_WINDOWS))

    def offer(self, seconds: float) -> Iterator[Row]:
        """A row of each window."""
        self._generator.throttle(int(self._knee * SLOW_PART * self._hop.frame_bytes))
        windows = max(1, min(WINDOWS, int(seconds / WINDOW_SECONDS)))
        each = seconds / windows
        for number in range(1, windows + 1):
            busy, before = self._hop.busy(), time.monotonic()
            forget_peak(self._pid)
            with self._generator.offering(each, TIMES * self._knee, limit=self._limit) as told:
                time.sleep(each / 4)
                asked = time.monotonic()
                pool_mib = self._forwarding()["pool_bytes"] / MIB
                admin_ms = 1e3 * (time.monotonic() - asked)
            self._count(told)
            share = (self._hop.busy() - busy) / (time.monotonic() - before)
            memory = {"peak_mib": peak_mib(self._pid), "limit_mib": self._limit_mib, "pool_mib": pool_mib}
            values = _window_values(told, TIMES * self._knee) | memory
            values |= {"busy_pct": 100 * share, "admin_ms": admin_ms}
            yield Row(BENCH, CASE, OF_WINDOWS, f"until {number * each:,.1f} s", "p99_us", values)

    def recover(self, light_us: float) -> Recovery:
        """Light load until all is as before. Raises TimedOutError while it is not in time, and UnaccountedError."""
        stopped = time.monotonic()
        emptied = in_time = near = None
        while near is None:
            told = self._light_window()
            held, passed = self._forwarding()["held"], time.monotonic() - stopped
            share = told["in_time"] / max(1, told["arrived"])
            if emptied is None and not held:
                emptied = passed
            if in_time is None and not held and share >= IN_TIME:
                in_time = passed
            if in_time is not None and told["p50_us"] <= NEAR * light_us:
                near = passed
            if passed > PATIENCE:
                break
        if emptied is None or in_time is None:
            late = f"{100 * share:.1f} % in time, {100 * IN_TIME:g} are needed"
            raise TimedOutError(f"recovered: not within {PATIENCE:g} s; {held:,} messages held, {late}")
        self._generator.throttle(0)
        before = self._dropped_before
        self._dropped = {why: count - before.get(why, 0) for why, count in self._settle().items()}
        lost = self._counts["taken"] - self._counts["arrived"] - sum(self._dropped.values())
        if lost:
            raise UnaccountedError(f"{lost:,.0f} messages were admitted, and neither arrived nor were told as dropped")
        return Recovery(emptied, in_time, near, light_us, told["p50_us"])

    def rows(self) -> Iterator[Row]:
        """What became of all that was offered, the light loads before and after included."""
        offered = self._counts["messages"]
        parts = {"offered": offered, "arrived": self._counts["arrived"], "refused at the door": self._counts["refused"]}
        parts |= {f"dropped: {reason}": count for reason, count in self._dropped.items() if count}
        for name, count in parts.items():
            values = {"value": float(count), "of_offered_pct": 100 * count / max(1, offered)}
            yield Row(BENCH, CASE, "what became of it", name, "value", values)

    def _settle(self) -> dict[str, int]:
        """Wait until all has arrived that is not dropped, for `PATIENCE` at most; what was dropped, by reason."""
        deadline = time.monotonic() + PATIENCE
        while True:
            told = self._generator.offer(0, 0, limit=self._limit, rest=REST_SECONDS)
            self._count(told)
            dropped: dict[str, int] = self._forwarding()["dropped"]
            if told["on_the_way"] == sum(dropped.values()) or time.monotonic() > deadline:
                return dropped

    def _light_window(self) -> Answer:
        told = self._generator.offer(LIGHT_SECONDS, LIGHT_PART * self._knee, limit=self._limit)
        self._count(told)
        return told

    def _forwarding(self) -> dict[str, Any]:
        forwarding: dict[str, Any] = self._daemon.status()["forwarding"]
        return forwarding

    def _count(self, told: Answer) -> None:
        for name in ("messages", "taken", "refused", "arrived"):
            self._counts[name] += int(told[name])


def _window_values(told: Answer, offered_s: float) -> dict[str, float]:
    return {
        "offered_s": offered_s,
        "refused_pct": 100 * told["refused"] / max(1, told["messages"]),
        "messages_s": told["arrived"] / told["seconds"],
        "p50_us": told["fast_p50_us"],
        "p99_us": told["fast_p99_us"],
        "slow_p50_us": told["slow_p50_us"],
        "slow_p99_us": told["slow_p99_us"],
    }


def _recovery_rows(recovery: Recovery) -> Iterator[Row]:
    median = {"p50_us": recovery.after_us}
    figures = {
        "light load before": {"p50_us": recovery.before_us},
        "pool empty": {"seconds": recovery.emptied},
        IN_TIME_AGAIN: {"seconds": recovery.in_time},
        ALLOWED: {"seconds": RECOVERY_SECONDS},
        "median as before" if recovery.near else f"median, not as before in {PATIENCE:g} s": median
        | ({"seconds": recovery.near} if recovery.near else {}),
    }
    for name, values in figures.items():
        yield Row(BENCH, CASE, OF_RECOVERY, name, next(iter(values)), values)
