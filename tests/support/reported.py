"""A digest of the report as a network of some size would give it; the same one every time."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from broker.flow import NUMBER, Disposition
from broker.pipeline.report.digest import (
    Digest,
    Extent,
    Hold,
    Imbalance,
    InputFacts,
    Journey,
    LedgerTotal,
    LinkRow,
    Listing,
    LoopRow,
    Loss,
    RouteUse,
    Series,
    Spread,
    StationRow,
    Talker,
    Timeline,
)

Row = TypeVar("Row")
HOSTILE = '<script>alert("x")</script>'
FIRST = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
AXIS = Timeline(FIRST, 900, 96)


def listing(rows: list[Row]) -> Listing[Row]:
    return Listing(tuple(rows), len(rows))


def digest(*, left: int = 8, gateways: int = 5, right: int = 8, seed: int = 7) -> Digest:
    """Shape: initiators' instances, gateways in two columns, targets' instances; one service has a hostile name."""
    dice = random.Random(seed)
    near = [
        f"gateway-{place}" for place in ("north", "south", "west", "east", *map(str, range(40)))[: gateways // 2 + 1]
    ]
    far = [f"core-{number}" for number in range(1, gateways - len(near) + 1)]
    sources = [f"shop-{number:02}" for number in range(1, left + 1)]
    targets = [f"billing-{number:02}" for number in range(1, right + 1)]
    links = [
        one
        for ends, gates, is_source in ((sources, near, True), (near, far, True), (targets, far, False))
        for end in ends
        for gate in dice.sample(gates, min(2, len(gates)))
        for one in _both(*((end, gate) if is_source else (gate, end)), dice)
    ]
    stations = [
        _station(name, links, position, dice)
        for names, position in ((sources, 0.0), (near, 0.34), (far, 0.66), (targets, 1.0))
        for name in names
    ]
    stations.sort(key=lambda one: -one.frames)
    services = ["//shop/Orders", "//shop/Returns", "//billing/Invoices", "//billing/Dunning", HOSTILE]
    pairs = [(a, b) for a in services for b in services if a != b]
    return Digest(
        facts=InputFacts(
            flows="/var/lib/broker/journal",
            files=len(stations) * 96,
            bytes=41 << 20,
            records=sum(one.frames for one in stations),
            instances=len(stations),
            samples=(1.0,),
            troubles=(
                "1 truncated or damaged, left out",
                "  date=2026-11-21/hour=07/core-1-000004-5f.parquet: damaged: no footer",
                "core-1 shed 1,204 records for want of room: figures lack them",
            ),
            version="0.1.0",
        ),
        balance=LedgerTotal(
            sent=1_204_311,
            delivered=1_203_876,
            acknowledged=402,
            under_way=31,
            missing=2,
            transmissions=1_241_020,
            resent=36_709,
            dropped=9_412,
            lost=4_118,
            duplicates=1_877,
            adds_up=False,
        ),
        imbalances=listing(
            [
                Imbalance(
                    str(UUID(int=dice.getrandbits(128))),
                    False,
                    HOSTILE,
                    "//billing/Invoices",
                    1,
                    0,
                    0,
                    ("missing: message 12",),
                ),
                Imbalance(
                    str(UUID(int=dice.getrandbits(128))),
                    True,
                    "//billing/Dunning",
                    "//shop/Orders",
                    1,
                    0,
                    0,
                    ("missing: message 4",),
                ),
            ]
        ),
        stations=listing(stations),
        links=listing(links),
        losses=listing(
            [
                Loss(one.from_instance, f"tcp://{one.to_instance}:4022", one.lost, one.frames, one.to_instance)
                for one in links
                if one.lost
            ]
        ),
        loops=listing(
            [
                LoopRow(
                    (sources[0], near[0], near[1], near[0], near[1]),
                    48,
                    "dropped",
                    Disposition.HOPS_EXHAUSTED,
                    FIRST,
                    FIRST + timedelta(minutes=4),
                )
            ]
        ),
        journeys=listing(
            [Journey(a, b, 90_000 - 4_000 * place, _spread(dice, 9_000)) for place, (a, b) in enumerate(pairs[:7])]
        ),
        extent=Extent(
            FIRST,
            FIRST + timedelta(days=1),
            transmissions=1_241_020,
            missing_hops=1_811,
            unknown_links=240,
            under_way=31,
            lost=sum(one.lost for one in links),
            looped=48,
        ),
        timeline=AXIS,
        traffic=_wave("frames", 42_000, dice),
        drops=(
            _burst(Disposition.POOL_LIMIT, 40, 8, 700, dice),
            _burst(Disposition.HOPS_EXHAUSTED, 60, 1, 48, dice),
            _burst(Disposition.NO_ROUTE, 12, 30, 20, dice),
        ),
        codes={str(reason): number for reason, number in NUMBER.items()},
        failovers=(_burst(near[0], 40, 3, 90, dice), _burst(sources[0], 41, 2, 30, dice)),
        routes=listing([_use(one, dice) for one in links[: 4 * gateways]]),
        holds=listing(sorted((_hold(name, dice) for name in (*near, *far)), key=lambda one: -one.peak_bytes)),
        services=listing(
            [
                Talker(a, b, 90_000 - 4_100 * place, (900 - 43 * place) << 20, 1_200 - 57 * place, 4_000)
                for place, (a, b) in enumerate(pairs)
            ]
        ),
        conversations=listing(
            [
                Talker(
                    *pairs[place % 3],
                    12_000 - 800 * place,
                    (140 - 9 * place) << 20,
                    90,
                    conversation=str(UUID(int=dice.getrandbits(128))),
                )
                for place in range(10)
            ]
        ),
    )


def _spread(dice: random.Random, middle: int) -> Spread:
    p50 = round(middle * dice.uniform(0.6, 1.6))
    p95 = round(p50 * dice.uniform(2, 5))
    return Spread(p50, p95, round(p95 * dice.uniform(1.5, 6)))


def _both(here: str, there: str, dice: random.Random) -> list[LinkRow]:
    frames = round(math.exp(dice.uniform(8, 11.5)))
    lost = dice.choice((0, 0, 0, 0, frames // 400, frames // 40))
    return [
        LinkRow(here, there, frames, frames * 1_900, lost, _spread(dice, 700)),
        LinkRow(there, here, frames * 2 // 3, frames * 600, 0, _spread(dice, 700)),
    ]


def _station(name: str, links: list[LinkRow], position: float, dice: random.Random) -> StationRow:
    near = [one for one in links if name in (one.from_instance, one.to_instance)]
    frames = sum(one.frames for one in near) or 1
    is_end = position in (0.0, 1.0)
    dropped = dice.choice((0, 0, frames // 300))
    return StationRow(
        name,
        frames,
        sum(one.bytes for one in near),
        frames if is_end else 0,
        position,
        dropped,
        _spread(dice, 4_000 if is_end else 60),
    )


def _wave(label: str, most: int, dice: random.Random) -> Series:
    return Series(
        label,
        tuple(
            round(most * (0.6 - 0.4 * math.cos(place / 96 * math.tau)) * dice.uniform(0.9, 1.1)) for place in range(96)
        ),
    )


def _burst(label: str, at: int, length: int, most: int, dice: random.Random) -> Series:
    return Series(
        str(label), tuple(round(most * dice.uniform(0.2, 1)) if at <= place < at + length else 0 for place in range(96))
    )


def _use(link: LinkRow, dice: random.Random) -> RouteUse:
    typical = link.transit
    return RouteUse(
        link.from_instance,
        "msdb",
        f"to-{link.to_instance}",
        link.frames,
        link.bytes,
        link.lost,
        dice.choice((0, 12)),
        typical,
        5 * (typical.p99 or 0),
        FIRST,
    )


def _hold(name: str, dice: random.Random) -> Hold:
    peak = round(math.exp(dice.uniform(13, 17)))
    line = tuple(round(peak * one / 42_000 * dice.uniform(0.1, 0.8)) for one in _wave("", 42_000, dice).points[:-1])
    return Hold(
        name,
        (*line, peak),
        peak,
        peak // 1_900,
        peak // 2,
        FIRST,
        1 << math.ceil(math.log2(peak * 1.25)),
        dice.choice((0.6, 0.31, 0.08)),
    )
