"""
A fleet whose dialogs are stored, as it is drawn from a number: its instances, applications and blows.

A region has two gateways, and around them shops, banks, and banks that are mirrored pairs; a shop has dialogs with a
bank and a pair of its own region and with one of the next, two gateways away. The last region is next to the first.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.routing.route import RouteProperties
from tests.simulation.instance import Part
from tests.simulation.joined import BLOWS, JUMPS
from tests.simulation.machine import Road
from tests.simulation.story import Blow, Deed

SECONDS = (0.1, 0.7, 3.0, 8.0)  # that a blow lasts; the longest outlasts everything that waits for silence
KINDS = {**BLOWS, "partition": 3}  # ... a gateway and half of those around it cannot hear each other
ON_PAIR = ("failover", "heir", "stale")
ON_ENDS = ("jump",)
BETWEEN = ("cut", "deafen", "reset")
DIALOGS = 3  # of each shop
CALM_ROAD, SLOW_ROAD = Road(delay=0.02), Road(delay=0.2)
BAD_ROAD = Road(delay=0.02, loss=0.01, repeat=0.01, late=0.05, damage=0.003)
WORN_ROAD = Road(delay=0.02, room=8192, crumb=300)  # frames are cut
STORE_FAILURE = 0.001  # chance that a turn fails, of databases that are not mirrored


@dataclass(frozen=True)
class Size:
    """
    Shape: `regions`; `shops`, `banks` and `pairs` of each region; `bursts` of messages of each shop, within `seconds`,
    in which as many `blows` strike each region.
    """

    regions: int = 105
    shops: int = 10
    banks: int = 5
    pairs: int = 2
    bursts: int = 16
    seconds: float = 30.0
    blows: int = 8

    @property
    def instances(self) -> int:
        return self.regions * (2 + self.shops + self.banks + 2 * self.pairs)


@dataclass(frozen=True)
class House:
    """
    A service with its database, of one instance or of two partners.

    Shape: `names` of its instances; `region` its number; `is_shop` whether it begins dialogs.
    """

    region: int
    service: str
    names: tuple[str, ...]
    is_shop: bool

    @property
    def banks(self) -> tuple[str, ...]:
        return self.names

    @property
    def is_pair(self) -> bool:
        return len(self.names) > 1

    @property
    def store_failure(self) -> float:
        return 0.0 if self.is_pair else STORE_FAILURE


@dataclass(frozen=True)
class Region:
    """Shape: `gateways` names of both; `blows` by the service of the pair that they are about, else by an empty one."""

    number: int
    gateways: tuple[str, str]
    shops: tuple[House, ...]
    banks: tuple[House, ...]
    blows: tuple[tuple[str, Blow], ...] = ()

    @property
    def houses(self) -> tuple[House, ...]:
        return (*self.shops, *self.banks)


@dataclass(frozen=True)
class Plan:
    """
    Shape: `far` the bank of each dialog of a shop, by its service; `deeds` likewise; `roads` what the network is like
    from an instant on.
    """

    seed: int
    size: Size
    regions: tuple[Region, ...]
    far: dict[str, tuple[House, ...]] = field(hash=False)
    deeds: dict[str, tuple[Deed, ...]] = field(hash=False)
    roads: tuple[tuple[float, Road], ...] = ()

    @property
    def houses(self) -> Iterator[House]:
        return (house for region in self.regions for house in region.houses)

    def next_to(self, region: Region, step: int) -> Region:
        return self.regions[(region.number + step) % len(self.regions)]


def draw(seed: int, size: Size) -> Plan:
    chance = random.Random(seed)
    regions = tuple(_region(chance, number, size) for number in range(size.regions))
    far: dict[str, tuple[House, ...]] = {}
    deeds: dict[str, tuple[Deed, ...]] = {}
    for region in regions:
        beyond = regions[(region.number + 1) % len(regions)].banks
        plain = [one for one in region.banks if not one.is_pair]
        pairs = [one for one in region.banks if one.is_pair]
        for shop in region.shops:
            far[shop.service] = (chance.choice(plain), chance.choice(pairs), chance.choice(beyond))
            deeds[shop.service] = tuple(_deed(chance, size) for _ in range(size.bursts))
    spells = ((0.0, CALM_ROAD), (0.3, BAD_ROAD), (0.6, WORN_ROAD), (0.75, SLOW_ROAD), (0.85, CALM_ROAD))
    roads = tuple((part * size.seconds, road) for part, road in spells)
    return Plan(seed, size, regions, far, deeds, roads)


def _region(chance: random.Random, number: int, size: Size) -> Region:
    gateways = (f"gateway-{number}-a", f"gateway-{number}-b")
    shops = tuple(_house(number, "shop", one) for one in range(size.shops))
    banks = tuple(_house(number, "bank", one) for one in range(size.banks))
    pairs = tuple(_house(number, "pair", one) for one in range(size.pairs))
    beyond = tuple(f"gateway-{(number + 1) % size.regions}-{one}" for one in "ab")
    region = Region(number, gateways, shops, banks + pairs)
    struck = (_blow(chance, region, beyond, size.seconds) for _ in range(size.blows))
    blows = tuple(sorted(struck, key=lambda one: one[1].at))
    return Region(number, gateways, shops, banks + pairs, blows)


def _house(region: int, kind: str, number: int) -> House:
    name, is_shop = f"{kind}-{region}-{number}", kind == "shop"
    names = (f"{name}-a", f"{name}-b") if kind == "pair" else (name,)
    return House(region, f"{'Orders' if is_shop else 'Billing'} {name}", names, is_shop)


def _deed(chance: random.Random, size: Size) -> Deed:
    what, amount = chance.choice([*[("many", 20), ("many", 40), ("many", 80)] * 3, ("send", 2500), ("rollback", 5)])
    after = chance.uniform(0.0, 2.0 * size.seconds / size.bursts)
    return Deed(after, chance.choice(["shop", "shop", "bank"]), what, chance.randrange(DIALOGS), amount)


def _blow(chance: random.Random, region: Region, beyond: tuple[str, ...], seconds: float) -> tuple[str, Blow]:
    """What happens, and of which pair; nothing lasts beyond `seconds` by more than its own length."""
    (what,) = chance.choices(list(KINDS), weights=list(KINDS.values()))
    at, lasts = chance.uniform(0.5, seconds), chance.choice(SECONDS)
    pair = chance.choice([one for one in region.banks if one.is_pair])
    ends = [name for house in region.houses for name in house.names]
    gateway = chance.choice(region.gateways)
    if what in ON_PAIR:
        return pair.service, Blow(at, what, pair.service, "", lasts)
    if what == "partition":
        half = chance.sample([*ends, *beyond], (len(ends) + len(beyond)) // 2)
        return "", Blow(at, what, gateway, " ".join(half), lasts)
    if what in BETWEEN:
        name, other = chance.sample([gateway, chance.choice([*ends, *beyond])], 2)
        return "", Blow(at, what, name, other, lasts)
    if what in ON_ENDS:
        return "", Blow(at, what, chance.choice(ends), str(chance.choice(JUMPS)), lasts)
    if what == "reroute":
        shop = chance.choice(region.shops).names[0]
        return "", Blow(at, what, chance.choice([gateway, shop]), "", lasts)
    name = chance.choice([gateway, chance.choice(ends), chance.choice(pair.names)])  # a third of all at gateways
    owner = next((house.service for house in region.banks if house.is_pair and name in house.names), "")
    return owner, Blow(at, what, name, "", lasts)


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
    gateways = tuple(gateways)
    for service in services:
        for gateway in gateways:
            yield RouteProperties(service_name=service, address=f"tcp://{gateway}:4022")
