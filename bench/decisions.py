"""
What a routing decision costs: remembered by the pass, asked anew in a table of a million routes, and explained.

CPU time of this process, median of rounds; every uncached question is about another service, as those of a gateway
after a change of routes are. The first row is what the language itself takes for a call and a look-up, for scale.
"""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from statistics import median
from typing import TypeVar

from msgspec.structs import replace

from bench.load import frames
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.protocol.layout import NO_GUID
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext, RoutingFacts, decide
from broker.routing.explain import DisplayNames, explain
from broker.routing.route import Route, RouteRow
from broker.routing.table import RouteTable, build_table, table_of_rows
from broker.security.grants import OPEN

ROUTES = 1_000_000
SMALL = 10
QUESTIONS = 4000
ROUNDS = 7
INSTANCES = 2  # of a balanced service

_T = TypeVar("_T")


def run() -> dict[str, float]:
    """Microseconds for one decision."""
    million, ten = table_of(ROUTES), table_of(SMALL)
    return {
        "a call and a look-up": _lookup(),
        "remembered by route key, whole walk": _remembered(balanced=False),
        "remembered by conversation, whole walk": _remembered(balanced=True),
        "asked anew, 10 routes": _decided(ten, SMALL),
        f"asked anew, {ROUTES:,} routes": _decided(million, ROUTES),
        f"asked anew, balanced over {INSTANCES}": _balanced(),
        f"explained, {ROUTES:,} routes": _explained(million),
    }


def table_of(routes: int) -> RouteTable:
    """A table of full routes, every one to a service of its own."""
    return table_of_rows(rows(routes), now=datetime.now(UTC))


def rows(routes: int) -> Iterator[RouteRow]:
    """Routes as they are stored."""
    for n in range(routes):
        instance = sha256(n.to_bytes(4, "big")).digest()[:16]
        address = f"tcp://gateway{n % 300}.example:4022"
        yield RouteRow(f"route{n:07}", service(n), instance, None, address, None, 1)


def service(n: int) -> str:
    """The name of a service, of usual length."""
    return f"//company/department/service{n:07}"


def _lookup() -> float:
    known = {service(n): n for n in range(1000)}
    names = [service(n % 1000) for n in range(QUESTIONS)]
    return _median(known.get, names)


def _remembered(*, balanced: bool) -> float:
    """What the walk takes for a frame whose way is known: finding its ends, checking and counting it included."""
    addresses = [NetworkAddress("north"), NetworkAddress("south")]
    forwarder = Forwarder(
        Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
        deliver=lambda *_: None,
        request_link=lambda _: None,
        health_of=lambda _: AddressHealth.CONNECTED,
    )
    routes = [Route(str(address), address) for address in (addresses if balanced else addresses[:1])]
    forwarder.set_routing(table=build_table(routes, now=datetime.now(UTC)), hosted=Hosted(), is_forwarding=True)
    data = frames([service(n) for n in range(100)], 256, count=QUESTIONS // 2)
    taken = []
    for _ in range(1 + ROUNDS):
        slab = bytearray(data)
        begun = time.process_time()
        batch = forwarder._kernels.of(OPEN).walk(slab, len(slab))  # noqa: SLF001 - without the sinks behind it
        taken.append((time.process_time() - begun) / (QUESTIONS // 2) * 1e6)
        for sink in batch.touched:
            sink.runs.clear()
    return median(taken[1:])  # the first one asked


def _here(table: RouteTable) -> RoutingContext:
    return RoutingContext(table, Hosted(), lambda _: AddressHealth.UNTRIED, is_forwarding=True)


def _facts(routes: int) -> list[RoutingFacts]:
    """Questions spread over the whole table, so that the processor's caches do not hold the answer."""
    return [
        RoutingFacts(service(n * 7919 % routes), NO_GUID, sha256(n.to_bytes(4, "little")).digest()[:16])
        for n in range(QUESTIONS)
    ]


def _decided(table: RouteTable, routes: int) -> float:
    here = _here(table)
    return _median(lambda facts: decide(facts, here), _facts(routes))


def _balanced() -> float:
    routes = [replace(row, remote_service_name=service(0)) for row in rows(INSTANCES)]
    here = _here(table_of_rows(routes, now=datetime.now(UTC)))
    return _median(lambda facts: decide(facts, here), _facts(1))


def _explained(table: RouteTable) -> float:
    here, names = _here(table), DisplayNames({}, str, str)
    return _median(lambda facts: explain(facts, here, names), _facts(ROUTES)[:500])


def _median(call: Callable[[_T], object], questions: list[_T]) -> float:
    taken = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for question in questions:
            call(question)
        taken.append((time.process_time() - begun) / len(questions) * 1e6)
    return median(taken)


if __name__ == "__main__":
    print(run())
