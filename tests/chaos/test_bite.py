"""A fault that does not what it says is not counted, however much its victim carries."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.cast import BILLING, PARCELS, STOCK
from tests.chaos.faults.catalog import FAULTS
from tests.chaos.faults.fault import Fault
from tests.chaos.network.impairment import Counts, ImpossibleError

GATEWAYS = ("gateway-1", "gateway-2")
ENDS = ("initiator-1", "initiator-2", BILLING, *STOCK, *PARCELS)
STEP = 1800.0


class Network:
    """Whose packets meet an impairment, or do not."""

    def __init__(self, counted: str) -> None:
        self.hosts = {name: name for name in (*GATEWAYS, *ENDS)}
        self._counted, self._looks = counted, 0

    def counts(self, source: str, destination: str) -> Counts:
        self._looks += 1
        return Counts(**dict.fromkeys(self._counted.split(), self._looks))

    def __getattr__(self, name: str) -> Any:  # whatever is done to it does nothing
        return lambda *_, **__: None


class Loopback(Network):
    def counts(self, source: str, destination: str) -> Counts:
        raise ImpossibleError("no packets")


def fleet(network: Any = None, **more: Any) -> Any:
    traffic = SimpleNamespace(carried=lambda _: 1, between=lambda *_: 1)
    return SimpleNamespace(
        gateways=GATEWAYS,
        names=(*GATEWAYS, *ENDS),
        mirror=STOCK[1],
        traffic=traffic,
        network=network or SimpleNamespace(hosts={}),
        neighbours=lambda name: ENDS if name in GATEWAYS else GATEWAYS,
        pause=lambda _: None,
        homes_of=lambda _: [],
        homes=[],
        **more,
    )


def begun(name: str, made: Any) -> Fault:
    fault = FAULTS[name](made, random.Random(1), set(made.names))
    fault.start()
    return fault


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("partition", "cut"),
        ("isolate", "cut"),
        ("one-way", "cut"),
        ("delay", "carried"),
        ("loss", "lost"),
        ("scramble", "duplicated reordered"),
        ("slow-link", "carried"),
        ("small-mtu", "too_large"),
        ("mtu-black-hole", "too_large"),
    ],
)
def test_a_fault_of_the_network_bites_when_packets_have_met_it(name: str, counted: str) -> None:
    others = " ".join({"cut", "carried", "lost", "duplicated", "reordered", "too_large"} - {*counted.split()})

    assert begun(name, fleet(Network(counted))).has_bitten()
    assert begun(name, fleet(Loopback(""))).has_bitten()
    assert not begun(name, fleet(Network(others))).has_bitten()


@pytest.mark.parametrize("free", [0, 4096])
def test_a_disk_is_full_when_the_file_system_says_so(free: int) -> None:
    disk = SimpleNamespace(fill=lambda: None, free_bytes=free)
    network = SimpleNamespace(hosts={BILLING: SimpleNamespace(disk=disk)})

    assert (free == 0) is begun("full-disk", fleet(network)).has_bitten()


@pytest.mark.parametrize(("ahead", "is_bitten"), [(1.0, True), (0.0, False)])
def test_a_clock_has_been_stepped_when_the_daemon_tells_the_other_time(ahead: float, *, is_bitten: bool) -> None:
    steps: list[float] = []

    def status() -> dict[str, Any]:
        at = time.time() + ahead * steps[0] - 60.0
        return {"started_at": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"), "uptime_s": 60.0}

    hosts = dict.fromkeys(ENDS, SimpleNamespace(clock=SimpleNamespace(step=steps.append)))
    daemons = dict.fromkeys(ENDS, SimpleNamespace(status=status))

    fault = begun("clock-step", fleet(SimpleNamespace(hosts=hosts), daemons=daemons))

    assert is_bitten is fault.has_bitten()


@pytest.mark.parametrize("is_limited", [True, False])
def test_memory_is_short_while_there_is_a_limit(*, is_limited: bool) -> None:
    tries: Counter[int] = Counter()

    def limit(count: int) -> None:
        tries[count] += 1
        if not is_limited:
            raise OSError("busy")

    memory = SimpleNamespace(used=7, limit=limit, is_limited=is_limited)
    hosts = dict.fromkeys((*GATEWAYS, *ENDS), SimpleNamespace(memory=memory))

    assert is_limited is begun("memory", fleet(SimpleNamespace(hosts=hosts))).has_bitten()
    assert (1 if is_limited else 10) == sum(tries.values())


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_reload_bites_when_daemons_say_that_something_has_changed(tmp_path: Path, *, is_changed: bool) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('heartbeat = "500ms"\n')

    def request(*_: object) -> dict[str, bool]:
        return {"changed": is_changed and "700ms" in config.read_text()}

    daemon = SimpleNamespace(config=config, admin=SimpleNamespace(request=request))

    fault = begun("reload", fleet(daemons=dict.fromkeys((*GATEWAYS, *ENDS), daemon)))

    assert is_changed is fault.has_bitten()
