"""
Whether throughput grows with `endpoint.workers`, on a machine with fewer cores than that would take.

Each worker may use a tenth of a core (a control group of its own, version 1, with a CPU quota), so that four of them
and the load generator fit on two cores and have nothing to wait for but their quota. Messages of 256 bytes over 400
connections, which the system spreads over the workers by hash; a flood ends when the last message has arrived, so the
worker with most connections decides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from broker.bench.forwarding import FLOOD, Scenario, Station, gateways, generating
from broker.bench.hop import gateway
from broker.bench.traffic import service_names

ROOT = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
SHARE = 0.1  # of a core, each
COUNTS = (1, 2, 3, 4)
ROUNDS = 5
SECONDS = 2.0
SCENARIO = Scenario(256, connections=400, workers=1)


def run() -> dict[str, float]:
    """Messages a second by number of workers, and how many times that of one; empty where no group can be made."""
    figures: dict[str, float] = {}
    if not os.access(ROOT, os.W_OK):
        return figures
    for name, environ in gateways().items():
        rates = {count: _rate(name, environ, count) for count in COUNTS}
        for count, rate in rates.items():
            workers = f"{name}, {count} worker{'s' * (count > 1)}"
            figures[f"{workers}, messages a second"] = rate
            figures[f"{workers}, times one"] = rate / rates[1]
    return figures


def _rate(name: str, environ: Mapping[str, str], count: int) -> float:
    scenario = replace(SCENARIO, workers=count)
    with generating() as (command, directories), ExitStack() as stack:
        services = service_names(scenario.destinations)
        made = gateway(next(directories), name, services, next_hops=1, environ=environ, workers=count)
        hop = stack.enter_context(made)
        station = stack.enter_context(Station(hop, scenario, command, next(directories)))
        stack.enter_context(_each_with_a_share(hop.pids[-count:]))
        station.warm_up(SECONDS)
        rate = median(station.run(FLOOD)["messages_s"] for _ in range(ROUNDS))
        hop.check()
    return rate


@contextmanager
def _each_with_a_share(pids: Sequence[int]) -> Iterator[None]:
    groups = []
    try:
        for pid in pids:
            group = ROOT / f"broker-bench-{pid}"
            group.mkdir()
            groups.append(group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(int(SHARE * PERIOD_US)), encoding="ascii")
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        yield
    finally:
        for group in groups:
            for left in (group / "cgroup.procs").read_text(encoding="ascii").split():
                (ROOT / "cgroup.procs").write_text(left, encoding="ascii")
            time.sleep(0.1)
            group.rmdir()
