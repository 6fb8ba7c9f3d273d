"""A digest of the report as a network of some size would give it; the same one every time."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from broker.flow import Disposition
from broker.pipeline.report import digest as shown
from broker.pipeline.report.digest import LinkRow, Listing, Series, Spread, StationRow, Talker, Timeline

HOSTILE = '<script>alert("x")</script>'
FIRST = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
AXIS = Timeline(FIRST, 900, 96)


def listing(rows: list[Any]) -> Listing[Any]:
    return Listing(tuple(rows), len(rows))


def digest(*, left: int = 8, gateways: int = 5, right: int = 8) -> shown.Digest:
    """So many initiators' instances, gateways in two columns, targets' instances; one service has a hostile name."""
    dice = random.Random(7)

    def spread(middle: int, frames: int) -> Spread:
        p50 = round(middle * dice.uniform(0.6, 1.6))
        p95 = round(p50 * dice.uniform(2, 5))
        return Spread(p50, p95, round(p95 * dice.uniform(1.5, 6)), frames)

    def both(here: str, there: str) -> list[LinkRow]:
        frames = round(math.exp(dice.uniform(8, 11.5)))
        lost = dice.choice((0, 0, 0, 0, frames // 400, frames // 40))
        return [
            LinkRow(here, there, frames, frames * 1_900, lost, spread(700, frames)),
            LinkRow(there, here, frames * 2 // 3, frames * 600, 0, spread(700, frames * 2 // 3)),
        ]

    def station(name: str, position: float) -> StationRow:
        near = [one for one in links if name in (one.from_instance, one.to_instance)]
        frames = sum(one.frames for one in near) or 1
        is_end, dropped = position in (0.0, 1.0), dice.choice((0, 0, frames // 300))
        size, ends = sum(one.bytes for one in near), frames if is_end else 0
        return StationRow(name, frames, size, ends, position, dropped, spread(4_000 if is_end else 60, frames))

    def wave(label: str, most: int) -> Series:
        swings = (0.6 - 0.4 * math.cos(place / 96 * math.tau) for place in range(96))
        return Series(label, tuple(round(most * swing * dice.uniform(0.9, 1.1)) for swing in swings))

    def burst(label: str, at: int, length: int, most: int) -> Series:
        points = (round(most * dice.uniform(0.2, 1)) if at <= place < at + length else 0 for place in range(96))
        return Series(str(label), tuple(points))

    def use(link: LinkRow) -> shown.RouteUse:
        to, worst = f"to-{link.to_instance}", 5 * (link.transit.p99 or 0)
        return shown.RouteUse(link.from_instance, "msdb", to, link.frames, link.transit, worst, FIRST)

    def hold(name: str) -> shown.Hold:
        peak = round(math.exp(dice.uniform(13, 17)))
        line = [round(peak * one / 42_000 * dice.uniform(0.1, 0.8)) for one in wave("", 42_000).points[:-1]]
        recommended, headroom = 1 << math.ceil(math.log2(peak * 1.25)), dice.choice((0.6, 0.31, 0.08))
        return shown.Hold(name, (*line, peak), peak, peak // 1_900, peak // 2, FIRST, recommended, headroom)

    def guid() -> str:
        return str(UUID(int=dice.getrandbits(128)))

    words = ("north", "south", "west", "east", *map(str, range(40)))
    near = [f"gateway-{word}" for word in words[: gateways // 2 + 1]]
    far = [f"core-{number}" for number in range(1, gateways - len(near) + 1)]
    sources = [f"shop-{number:02}" for number in range(1, left + 1)]
    targets = [f"billing-{number:02}" for number in range(1, right + 1)]
    links = [
        one
        for ends, gates, is_source in ((sources, near, True), (near, far, True), (targets, far, False))
        for end in ends
        for gate in dice.sample(gates, min(2, len(gates)))
        for one in both(*((end, gate) if is_source else (gate, end)))
    ]
    columns = ((sources, 0.0), (near, 0.34), (far, 0.66), (targets, 1.0))
    stations = sorted((station(name, at) for names, at in columns for name in names), key=lambda one: -one.frames)
    services = ["//shop/Orders", "//shop/Returns", "//billing/Invoices", "//billing/Dunning", HOSTILE]
    pairs = [(a, b) for a in services for b in services if a != b]
    lossy = [one for one in links if one.lost]
    return shown.Digest(
        facts=shown.InputFacts(
            flows="/var/lib/broker/journal",
            files=len(stations) * 96,
            records=sum(one.frames for one in stations),
            instances=len(stations),
            samples=(1.0,),
            troubles=(
                "1 file truncated or damaged, left out",
                "  date=2026-11-21/hour=07/core-1-000004-5f.parquet: damaged: no footer",
                "core-1 shed 1,204 records for want of room: figures lack them",
            ),
            version="0.1.0",
        ),
        balance=shown.LedgerTotal(
            *(1_204_311, 1_203_876, 402, 31, 2, 0, 0, 0, 1_241_020, 36_709, 9_412, 4_118, 1_877), adds_up=False
        ),
        imbalances=listing(
            [
                shown.Imbalance(guid(), HOSTILE, "//billing/Invoices", 1, 0, 0, ("missing: message 12",)),
                shown.Imbalance(guid(), "//billing/Dunning", "//shop/Orders", 1, 0, 0, ("missing: message 4",)),
            ]
        ),
        stations=listing(stations),
        links=listing(links),
        losses=listing(
            [shown.Loss(one.from_instance, f"tcp://{one.to_instance}:4022", one.lost, one.to_instance) for one in lossy]
        ),
        loops=listing(
            [
                shown.LoopRow(
                    (sources[0], near[0], near[1], near[0], near[1]),
                    *(48, "dropped", Disposition.HOPS_EXHAUSTED, FIRST, FIRST + timedelta(minutes=4)),
                )
            ]
        ),
        journeys=listing(
            [
                shown.Journey(*pair, messages := 90_000 - 4_000 * place, spread(9_000, messages))
                for place, pair in enumerate(pairs[:7])
            ]
        ),
        extent=shown.Extent(
            *(FIRST, FIRST + timedelta(days=1), 1_241_020, 1_811, 240, 31),
            lost=sum(one.lost for one in links),
            looped=48,
        ),
        timeline=AXIS,
        traffic=wave("frames", 42_000),
        drops=(
            burst(Disposition.POOL_LIMIT, 40, 8, 700),
            burst(Disposition.HOPS_EXHAUSTED, 60, 1, 48),
            burst(Disposition.NO_ROUTE, 12, 30, 20),
        ),
        failovers=(burst(near[0], 40, 3, 90), burst(sources[0], 41, 2, 30)),
        routes=listing([use(one) for one in links[: 4 * gateways]]),
        holds=listing(sorted(map(hold, (*near, *far)), key=lambda one: -one.peak_bytes)),
        services=listing(
            [
                Talker(*pair, 90_000 - 4_100 * place, (900 - 43 * place) << 20, 1_200 - 57 * place, 4_000)
                for place, pair in enumerate(pairs)
            ]
        ),
        conversations=listing(
            [
                Talker(*pairs[place % 3], 12_000 - 800 * place, (140 - 9 * place) << 20, 90, conversation=guid())
                for place in range(10)
            ]
        ),
    )
