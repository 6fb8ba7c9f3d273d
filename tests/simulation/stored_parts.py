"""What each instance of a fleet whose dialogs are stored is, and its routes (`stored_plan` tells who is there)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from broker.routing.route import RouteProperties
from tests.simulation.instance import Part
from tests.simulation.stored_plan import House, Plan, Region

LOCAL = (RouteProperties(address="LOCAL"),)


def parts_of(
    plan: Plan, path: Callable[[House], Path], ids: Mapping[str, uuid.UUID]
) -> Iterator[tuple[Part, House | None]]:
    """Every instance, and its house; None of a gateway."""
    callers: dict[str, list[str]] = defaultdict(list)
    for shop, banks in plan.far.items():
        for bank in banks:
            if shop not in callers[bank.service]:
                callers[bank.service].append(shop)
    for region in plan.regions:
        routes = tuple(_of_gateway(plan, region, ids))
        for gateway in region.gateways:
            yield Part(gateway, routes), None
        for house in region.houses:
            far = [one.service for one in plan.far[house.service]] if house.is_shop else callers[house.service]
            own = tuple(_by(region.gateways, dict.fromkeys(far)))
            for name in house.names:
                yield Part(name, LOCAL, path(house), house.service, own, is_mirrored=house.is_pair), house


def _of_gateway(plan: Plan, region: Region, ids: Mapping[str, uuid.UUID]) -> Iterator[RouteProperties]:
    """To its own houses, to the banks of the next region, and back to the shops of the last one."""
    for house in region.houses:
        if house.is_pair:
            first, second = (f"tcp://{name}:4022" for name in house.names)
            yield RouteProperties(house.service, str(ids[house.service]), address=first, mirror_address=second)
        else:
            yield RouteProperties(service_name=house.service, address=f"tcp://{house.names[0]}:4022")
    there, back = plan.next_to(region, 1), plan.next_to(region, -1)
    yield from _by(there.gateways, (bank.service for bank in there.banks))
    yield from _by(back.gateways, (shop.service for shop in back.shops))


def _by(gateways: Iterable[str], services: Iterable[str]) -> Iterator[RouteProperties]:
    """To each of these services by each gateway."""
    gateways = tuple(gateways)
    for service in services:
        for gateway in gateways:
            yield RouteProperties(service_name=service, address=f"tcp://{gateway}:4022")
