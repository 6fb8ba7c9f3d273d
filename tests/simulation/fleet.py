"""
Fleets that no machine holds, by the product's own parts under one virtual clock: who is chosen, who dials when, who
learns of a failover when, and what a link costs.

`python -m tests.simulation.fleet` prints a table and writes `docs/performance/fleets.json` and `fleets.svg`; see there,
and docs/contributors/fault-testing.md, "Fleets". The same seed gives the same figures, but for memory.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from bench.plot import WIDTH, drawing
from broker.net.dialer import Dialer
from broker.net.peer_table import PeerTable
from broker.protocol.layout import NO_GUID
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext, RoutingFacts, decide
from broker.routing.route import RouteProperties, create_route
from broker.routing.table import RouteTable, build_table
from tests.simulation.fleet_crowd import crowd, memory
from tests.simulation.fleet_failover import failover
from tests.simulation.machine import MachineLoop, Net
from tests.support.virtual_time import run_virtually

DIRECTORY = Path(__file__).parents[2] / "docs" / "performance"
TICK_SECONDS = 1.0  # between two looks of an instance at what it might dial
ROUND_TRIP = 0.02  # seconds at most, to any gateway
WINDOW = 0.1  # seconds in which a peak is counted
BACK_AFTER = 60.0  # seconds for which the big gateway is away


@dataclass(frozen=True)
class Size:
    """How large. `connections` of the big gateway; `links` measured; `talkers` and `hops` of the run."""

    gateways: int = 1000
    endpoints: int = 100_000
    connections: int = 10_000
    links: int = 1000
    talkers: int = 1800
    hops: int = 200
    messages: int = 1000  # of each talker


SMALL = Size(gateways=50, endpoints=2000, connections=300, links=30, talkers=20, hops=4, messages=50)


def address_of(number: int) -> NetworkAddress:
    """Of a gateway."""
    return NetworkAddress(f"gateway-{number}", 4022)


def table_to(*numbers: int) -> RouteTable:
    """Routes to one service by each of these gateways."""
    now = datetime.now(UTC)
    properties = [RouteProperties(service_name="Billing", address=str(address_of(one))) for one in numbers]
    return build_table(
        [create_route(f"route {number}", one, now=now) for number, one in enumerate(properties)], now=now
    )


# --- who is chosen ---


def distribution(size: Size, seed: int = 1) -> dict[str, Any]:
    """
    Endpoints with routes to three gateways each, drawn from all; one conversation each, and then one gateway less.

    Returns:
        Conversations of one gateway at least, at most, and on average; what three sigma of pure chance would be; and
        which part of the conversations moved when the fullest gateway was gone, of which it had `had`.
    """
    chance = random.Random(seed)
    gone: set[NetworkAddress] = set()

    def health_of(address: NetworkAddress) -> AddressHealth:
        return AddressHealth.SUPPRESSED if address in gone else AddressHealth.CONNECTED

    asked = []
    for _ in range(size.endpoints):
        table = table_to(*chance.sample(range(size.gateways), 3))
        asked.append((RoutingFacts("Billing", NO_GUID, chance.randbytes(16), database=b"d" * 16), table))

    def chosen() -> list[NetworkAddress]:
        return [
            decide(facts, RoutingContext(table, Hosted(), health_of, is_forwarding=False)).candidates[0].address
            for facts, table in asked
        ]

    before = chosen()
    load = Counter(before)
    (fullest, had), *_ = load.most_common(1)
    gone.add(fullest)
    after = chosen()
    mean = size.endpoints / size.gateways
    return {
        "conversations of a gateway, mean": mean,
        "conversations of a gateway, least": min(load[address_of(one)] for one in range(size.gateways)),
        "conversations of a gateway, most": had,
        "three sigma of pure chance": round(3 * math.sqrt(mean), 1),
        "moved when the fullest is gone": sum(one != other for one, other in zip(before, after, strict=True)),
        "most any other took over": max((Counter(after) - load).values()),
    }


# --- who dials when ---


class Town:
    """A gateway with a crowd, as the dialling of its endpoints sees it: there or not, and how often it was tried."""

    def __init__(self, loop: MachineLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.is_there = True
        self.attempts: list[float] = []
        self.served: list[float] = []

    async def dial(self, _address: NetworkAddress, _connect: Callable[..., Awaitable[Any]]) -> None:
        """As the entrance: a connection, or it is refused a round trip later."""
        await asyncio.sleep(self.chance.uniform(0.001, ROUND_TRIP))
        self.attempts.append(self.loop.time())
        if not self.is_there:
            raise ConnectionRefusedError(111, "Connection refused")


class Dialler:
    """One endpoint with one gateway: the product's own dialling and memory of addresses; `wants` while frames wait."""

    def __init__(self, town: Town, address: NetworkAddress, table: RouteTable, *, wants: bool) -> None:
        self.town = town
        self.address = address
        self.wants = wants
        self.is_online = True
        self.addresses = PeerTable()
        self.dialling = Dialer(
            town,  # type: ignore[arg-type]
            self.addresses,
            10.0,
            is_invented=lambda _: False,
            on_open=self._on_open,
            on_unreached=self._on_failed,
        )
        self.dialling.on_routes([table])
        self.dialling.request(address)  # so that it is known
        town.loop.call_later(town.chance.uniform(0.0, TICK_SECONDS), self._tick)

    def lose(self) -> None:
        """Its connection is reset; as `Peers.on_lost`."""
        self.is_online = False
        self.addresses.suppress(self.address, "Connection reset by peer")
        if self.wants:
            self.dialling.request(self.address)

    def _on_open(self, _opening: object, address: NetworkAddress) -> None:
        attempts = self.addresses.histories[address]
        attempts.record_success()
        attempts.is_dialling = False
        if not self.is_online:
            self.town.served.append(self.town.loop.time())
        self.is_online = True

    def _on_failed(self, address: NetworkAddress) -> None:
        if self.wants and not self.is_online:
            self.dialling.request(address)

    def _tick(self) -> None:
        self.town.loop.call_later(TICK_SECONDS, self._tick)
        if not self.is_online:
            self.dialling.dial_due(self.town.loop.time(), ())


def storm(size: Size, seed: int = 1, *, away: float = BACK_AFTER) -> dict[str, Any]:
    """
    A gateway with a crowd is gone and comes back: attempts to reach it over time, and how soon all are there again.

    Half of the crowd has messages that wait, and dials for them; the other half dials because a route names it.
    """
    loop = MachineLoop()
    chance = random.Random(seed)
    Net(loop, chance)
    town = Town(loop, chance)
    lost_at = 5.0

    async def main(_: object) -> None:
        address = address_of(0)
        table = table_to(0)
        crowd = [Dialler(town, address, table, wants=number % 2 == 0) for number in range(size.connections)]
        await asyncio.sleep(lost_at)
        town.attempts.clear()
        town.is_there = False
        for one in crowd:
            one.lose()
        await asyncio.sleep(away)
        town.is_there = True
        await asyncio.sleep(15.0)
        for one in crowd:
            await one.dialling.close()

    state = random.getstate()
    random.seed(seed)
    try:
        with structlog.testing.capture_logs():
            run_virtually(main, loop)
    finally:
        random.setstate(state)
    back = lost_at + away
    return {
        "seconds": [one - lost_at for one in town.attempts],
        "back": [one - back for one in town.served],
        "connections": size.connections,
        "away": away,
    }


def storm_figures(told: dict[str, Any]) -> dict[str, Any]:
    """What a storm comes to: per second, and in the fullest tenth of a second, while away and once it is back."""
    crowd, away, back = told["connections"], told["away"], sorted(told["back"])
    late = Counter(int(one / WINDOW) for one in told["seconds"] if away / 2 <= one < away)
    windows = int(away / 2 / WINDOW)
    mean = sum(late.values()) / windows
    return {
        "attempts a second while away": round(mean / WINDOW),
        "fullest tenth of a second while away, times the mean": round(max(late.values(), default=0) / mean, 1),
        "back, in a second at most": max(Counter(int(one) for one in back).values(), default=0),
        "back, in a tenth of a second at most": max(Counter(int(one / WINDOW) for one in back).values(), default=0),
        "seconds until half are back": round(back[len(back) // 2], 2),
        "seconds until all are back": round(back[-1], 2),
        "missing": crowd - len(back),
    }


# --- all of it ---


def measure(size: Size, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Every question, one after the other."""
    told = storm(size)
    short = storm(size, away=1.0)
    with mock.patch("broker.net.peer_table.SPREAD", 0.0):
        in_step = storm(size)
    questions: dict[str, Callable[[], dict[str, Any]]] = {
        "distribution": lambda: distribution(size),
        "storm": lambda: storm_figures(told),
        "storm, away for a second": lambda: storm_figures(short),
        "storm without spread, as it was": lambda: storm_figures(in_step),
        "failover, connections reset": lambda: failover(size.gateways, is_silent=False),
        "failover, silent": lambda: failover(size.gateways, is_silent=True),
        "memory": lambda: memory(size.links),
        "whole instances": lambda: crowd((size.talkers, size.hops), size.messages),
    }
    found: dict[str, Any] = {}
    for name, question in questions.items():
        found[name] = question()
        tell(name)
        for what, figure in found[name].items():
            tell(f"    {what:<55} {figure}")
    found["attempts by second"] = _by_second(told)
    found["attempts by second without spread"] = _by_second(in_step)
    return found


def _by_second(told: dict[str, Any]) -> list[int]:
    seconds = Counter(int(one / WINDOW) for one in told["seconds"])
    return [seconds[number] for number in range(int((told["away"] + 15.0) / WINDOW))]


def draw(found: dict[str, Any]) -> str:
    """Attempts in each tenth of a second, with and without spread, as SVG."""
    height, left = 200, 60
    parts, titles = [], []
    rows = ("attempts by second without spread", "#c1572b"), ("attempts by second", "#5b8db8")
    for row, (name, colour) in enumerate(rows):
        values = found[name]
        top, bottom = max(values), 40 + row * (height + 50) + height
        step = (WIDTH - left - 20) / len(values)
        title = "without spread: in step" if row == 0 else "each wait shorter by chance, by up to a half"
        title += f"; connection attempts in each tenth of a second, most {top}"
        titles.append(title)
        parts.append(f"<text x='12' y='{bottom - height - 12}'>{title}</text>")
        points = " ".join(
            f"{left + n * step:.1f},{bottom - height * value / top:.1f}" for n, value in enumerate(values)
        )
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}'/>")
        parts += [
            f"<text x='{left + second / WINDOW * step:.0f}' y='{bottom + 16}'>{second} s</text>"
            for second in range(0, 75, 10)
        ]
    return drawing("Connection attempts while the gateway is away", ". ".join(titles), 540, parts)


def main() -> int:
    """Measure, print, and write."""
    size = Size()

    def tell(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    found = measure(size, tell)
    stamp = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "size": asdict(size)}
    DIRECTORY.joinpath("fleets.json").write_text(json.dumps(stamp | found, indent=1) + "\n", encoding="utf-8")
    DIRECTORY.joinpath("fleets.svg").write_text(draw(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
