"""
A fleet whose dialogs are stored, as it is drawn from a number: who is there, what its applications do, what happens.

A region has two gateways, and around them shops, banks, and banks that are mirrored pairs; a shop has dialogs with a
bank and a pair of its own region and with one of the next, two gateways away. The last region is next to the first.
A plan is a value, and the same number draws the same one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.joined_story import BLOWS, JUMPS
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
        """Gateways and partners of pairs are counted each."""
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
        """As `Blows` asks."""
        return self.names

    @property
    def is_pair(self) -> bool:
        """Whether it is mirrored."""
        return len(self.names) > 1

    @property
    def store_failure(self) -> float:
        """As `Blows` asks."""
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
        """All of them."""
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
        """All of them."""
        return (house for region in self.regions for house in region.houses)

    def next_to(self, region: Region, step: int) -> Region:
        """The region so many steps on."""
        return self.regions[(region.number + step) % len(self.regions)]


def draw(seed: int, size: Size) -> Plan:
    """The plan of this number."""
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
