"""
What a journal costs a gateway: the same flood through one without a journal, another one without, which shows how much
two that are alike differ, one that samples a hundredth of the dialogs, and one that records every message.

The four take turns, in the one order and in the other, so that all of them see the same weather; each is pinned to
one core, all its threads, and the load generator to another, as in `broker.bench.forwarding`. A turn begins when the
writer of the one before has nothing left to do: after a flood that may be half as much as during it, on the same core.
Beside the rate and the CPU time of the process, that of its loop's thread alone is told: what is left is the writer's,
which gets less of a core than the loop where both want one. Records that were shed were not written; a flood is more
than a journal on the same core keeps up with.
"""

import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Row, cpu_seconds, row_of, thread_seconds
from bench.forwarding import FLOOD, FLOOD_SECONDS, REPEATS, Mode, Scenario, Station, gateway, generating, mode_name
from bench.generator import service_names

WITHOUT = "no journal"
SAMPLES: dict[str, float | None] = {
    WITHOUT: None,
    "another without": None,
    "journal, 1 %": 0.01,
    "journal, every message": 1.0,
}
DIALOGS = 1000  # so that a hundredth of them is some
STEADY = 50_000  # messages a second that everything keeps up with
QUICK = (Scenario(256, destinations=DIALOGS, modes=(FLOOD, STEADY)), Scenario(1024, destinations=DIALOGS))
FULL = (*QUICK, Scenario(64, destinations=DIALOGS), Scenario(16 * 1024, destinations=DIALOGS))
FULL_REPEATS = 25  # neighbours take a fifth of a core for seconds, and a hundredth of the dialogs costs a few percent
IDLE_LOOK_SECONDS = 0.1  # between two looks at the CPU time of a gateway ...
IDLE_SHARE = 0.1  # ... of which it uses less than this when its writer is done
IDLE_LOOKS = 50  # at most
_LAG = "broker_event_loop_lag_seconds "


def measure(
    scenarios: Sequence[Scenario],
    *,
    repeats: int = REPEATS,
    flood_seconds: float = FLOOD_SECONDS,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """
    Rows of every scenario, mode and sample; `tell` hears what is measured now.

    Raises:
        GeneratorError: the load generator could not be made, or lost its connection to a gateway.
        FramesLostError: a gateway dropped something.
    """
    rows: list[Row] = []
    with generating() as (command, directories):
        for scenario in scenarios:
            tell(scenario.name)
            rows += _measure(scenario, command, next(directories), repeats, flood_seconds)
    return rows


def _measure(
    scenario: Scenario, command: Sequence[str], directory: Path, repeats: int, flood_seconds: float
) -> Iterator[Row]:
    with ExitStack() as stack:
        stations = {
            name: _station(stack, scenario, command, directory / str(number), name)
            for number, name in enumerate(SAMPLES)
        }
        for station in stations.values():
            station.warm_up(flood_seconds)
            _let_finish(*station.hop.pids)
        taken: dict[tuple[Mode, str], list[dict[str, float]]] = {}
        for turn in range(repeats):
            for mode in scenario.modes:
                for name, station in list(stations.items())[:: -1 if turn % 2 else 1]:
                    taken.setdefault((mode, name), []).append(_sample(station, mode))
        for station in stations.values():
            station.hop.check()
    for (mode, name), samples in taken.items():
        headline = "messages_s" if mode == FLOOD else "cpu_us"
        yield row_of(("journal", scenario.name, mode_name(mode), name), headline, samples, yardstick=WITHOUT)


def _station(stack: ExitStack, scenario: Scenario, command: Sequence[str], directory: Path, name: str) -> Station:
    sample = SAMPLES[name]
    journal = {} if sample is None else {"journal": {"directory": "flows", "sample": sample}}
    services = service_names(scenario.destinations)
    hop = gateway(directory, name, services, next_hops=scenario.next_hops, environ={}, settings=journal)
    return stack.enter_context(Station(stack.enter_context(hop), scenario, command, directory))


def _sample(station: Station, mode: Mode) -> dict[str, float]:
    """One measurement; the part of the loop's thread in it, and of what was to be recorded the part that was shed."""
    (pid,) = station.hop.pids
    before, all_before, loop_before = _recorded(station), cpu_seconds(pid), thread_seconds(pid, pid)
    values = station.run(mode)
    loop_share = (thread_seconds(pid, pid) - loop_before) / max(cpu_seconds(pid) - all_before, 1e-9)
    written, shed = (after - earlier for after, earlier in zip(_recorded(station), before, strict=True))
    told = {"loop_us": values["cpu_us"] * loop_share, "lag_ms": _lag_ms(station)}
    _let_finish(pid)
    return values | told | {"shed_share": shed / max(1.0, written + shed)}


def _let_finish(pid: int) -> None:
    """Wait until a gateway uses next to no CPU time."""
    before = cpu_seconds(pid)
    for _ in range(IDLE_LOOKS):
        time.sleep(IDLE_LOOK_SECONDS)
        now = cpu_seconds(pid)
        if now - before < IDLE_SHARE * IDLE_LOOK_SECONDS:
            break
        before = now


def _recorded(station: Station) -> tuple[float, float]:
    """Records that the writer has, and those that were shed."""
    assert station.hop.daemon is not None
    journal = station.hop.daemon.status()["journal"]
    return (0.0, 0.0) if journal is None else (journal["records"] + journal["pending"], journal["shed"])


def _lag_ms(station: Station) -> float:
    """By how much the loop was late at worst in the last 15 s."""
    assert station.hop.daemon is not None
    url = f"http://127.0.0.1:{station.hop.daemon.observe_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return 1000 * float(next(line for line in lines if line.startswith(_LAG)).removeprefix(_LAG))
