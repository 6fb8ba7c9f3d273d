"""
Mirrored routes in use, as `sys.dm_broker_mirrors`, the status and the metrics show them.

`read_mirrors` copies what belongs to the loop; the rest are pure functions of what it gives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Outbox
from broker.net.mirrors import Mirrors
from broker.observe.described import MetricDefinition, Reader, single
from broker.observe.label import Labels
from broker.observe.view import MIRRORS, make_row
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import AddressState, MirroredRoute
from broker.routing.route import MirroredPair

MIRROR_METRICS = (
    MetricDefinition(
        "broker_mirror_principal",
        "1 for the address of a mirrored route in use to which its messages go, else 0.",
        ("route", "address"),
        fold=max,
    ),
    MetricDefinition(
        "broker_mirror_state",
        "Of a mirrored route in use: 1 operational, 2 principal only, 3 not operational, so messages wait.",
        ("route",),
        fold=max,
    ),
    MetricDefinition("broker_mirror_probes_total", "PROBE frames sent to partners of mirrored routes."),
    MetricDefinition(
        "broker_mirror_answers_total", "PROBE_REPLY frames of partners of mirrored routes, by role.", ("role",)
    ),
)


@dataclass(frozen=True, slots=True)
class MirrorShown:
    """
    One pair at one moment.

    Shape: `route_name` of one route that names it; `seen` of ADDRESS and of MIRROR_ADDRESS; `due` monotonic seconds of
    the next PROBE; `zero` UTC seconds since 1970 when the clock of the loop said 0; `frames`, `bytes` that wait.
    """

    route_name: str
    pair: MirroredPair
    state: int
    state_desc: str
    principal: NetworkAddress | None
    epoch: int
    seen: tuple[AddressState, AddressState]
    due: float | None
    alarm: str
    zero: float
    frames: int
    bytes: int


def read_mirrors(mirrors: Mirrors, now: float) -> list[MirrorShown]:
    """Every pair in use, at this monotonic instant. Loop-only. Cost: the pairs."""
    zero = time.time() - now
    return [_shown(mirrors, pair, one.route, zero) for pair, one in mirrors.in_use.items()]


def _shown(mirrors: Mirrors, pair: MirroredPair, route: MirroredRoute[NetworkAddress], zero: float) -> MirrorShown:
    frames, size = mirrors.waiting(pair)
    return MirrorShown(
        route_name=mirrors.route_name(pair),
        pair=pair,
        state=route.state.value,
        state_desc=route.state.name,
        principal=route.principal,
        epoch=route.epoch,
        seen=(route.seen[pair.address], route.seen[pair.mirror_address]),
        due=route.due,
        alarm=route.alarm,
        zero=zero,
        frames=frames,
        bytes=size,
    )


def mirror_rows(shown: Iterable[MirrorShown]) -> Iterator[tuple[object, ...]]:
    """One row for each pair."""
    for one in shown:
        sides = {"address": one.seen[0], "mirror": one.seen[1]}
        yield make_row(
            MIRRORS,
            route_name=one.route_name,
            remote_service_name=one.pair.remote_service_name,
            broker_instance=one.pair.broker_instance,
            address=str(one.pair.address),
            mirror_address=str(one.pair.mirror_address),
            principal_address=None if one.principal is None else str(one.principal),
            state=one.state,
            state_desc=one.state_desc,
            epoch=one.epoch,
            next_probe_time=_utc_of(one, one.due),
            waiting_messages=one.frames,
            waiting_bytes=one.bytes,
            alarm=one.alarm or None,
            **{f"{side}_probe_time": _utc_of(one, seen.asked_at) for side, seen in sides.items()},
            **{f"{side}_answer_time": _utc_of(one, seen.answered_at) for side, seen in sides.items()},
            **{f"{side}_role": seen.role and str(seen.role) for side, seen in sides.items()},
            **{f"{side}_epoch": seen.epoch for side, seen in sides.items()},
            **{f"{side}_problem": seen.problem or None for side, seen in sides.items()},
        )


def mirror_status(shown: Iterable[MirrorShown]) -> list[dict[str, Any]]:
    """The same in short, for the status."""
    return [
        {
            "route": one.route_name,
            "service": one.pair.remote_service_name,
            "broker_instance": str(one.pair.broker_instance),
            "state": one.state_desc,
            "principal": None if one.principal is None else str(one.principal),
            "epoch": one.epoch,
            "partners": {
                str(address): {"role": seen.role and str(seen.role), "epoch": seen.epoch, "problem": seen.problem}
                for address, seen in zip((one.pair.address, one.pair.mirror_address), one.seen, strict=True)
            },
            "held": one.frames,
            "held_bytes": one.bytes,
            "alarm": one.alarm,
        }
        for one in shown
    ]


# --- metrics, on the loop ---------------------------------------------------------------------------------------


def mirror_readers() -> Mapping[str, Reader]:
    """What reads each of them."""
    return {
        "broker_mirror_principal": lambda instance: principal_samples(instance.mirrors),
        "broker_mirror_state": lambda instance: state_samples(instance.mirrors),
        "broker_mirror_probes_total": single(lambda instance: instance.mirrors.probes),
        "broker_mirror_answers_total": lambda instance: [((role,), n) for role, n in instance.mirrors.answers.items()],
    }


def principal_samples(mirrors: Mirrors) -> Iterator[tuple[Labels, float]]:
    """Route and address of every pair in use."""
    for pair, one in mirrors.in_use.items():
        for address in one.route.addresses:
            yield (mirrors.route_name(pair), str(address)), one.route.principal == address


def state_samples(mirrors: Mirrors) -> Iterator[tuple[Labels, float]]:
    """The number of the state by route."""
    for pair, one in mirrors.in_use.items():
        yield (mirrors.route_name(pair),), one.route.state.value


def carried_by_way(forwarder: Forwarder) -> dict[Labels, float]:
    """The same added up, of the ways that there are now."""
    carried: dict[Labels, float] = {}
    for labels, frames in forwarded_samples(forwarder):
        carried[labels] = carried.get(labels, 0) + frames
    return carried


def forwarded_samples(forwarder: Forwarder) -> Iterator[tuple[Labels, float]]:
    """
    Frames that left, by route and address; of mirrored routes by the address that was principal then.

    All of it is as of the first step, so that the others may be made in later turns of the loop.
    """
    principals = forwarder.here.principals
    left = [(way.route, way.sink, way.frames) for way in forwarder.ways.values() if isinstance(way.sink, Outbox)]
    earlier = [one for counts in forwarder.left.values() for one in counts.items()]
    hops: dict[Outbox, str | None] = {}  # its text costs more than all else, and many routes lead to one address
    for route, outbox, frames in left:
        if outbox not in hops:
            address = outbox.address
            hop = principals.get(address) if isinstance(address, MirroredPair) else address
            hops[outbox] = None if hop is None else str(hop)
        told = hops[outbox]
        if told is not None:
            yield (route, told), frames
    yield from earlier


def _utc_of(one: MirrorShown, at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(one.zero + at, UTC)
