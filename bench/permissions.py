"""
What a permission costs a frame on the pass: the same frames for a peer that everything is permitted to, and for one
with a thousand grants that have been asked once.

The pass runs in this process, from what one read brings to the one write of the next hop, which throws it away. CPU
nanoseconds a frame.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from bench.figures import Row, row_of
from bench.generator import frames, service_names
from broker.flow import Disposition
from broker.forwarding.entry import Buffer
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import choose_kernel
from broker.forwarding.pool import Limits
from broker.protocol.layout import MAX_FRAME
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import OPEN, Grants, Permission, PermissionRule, PermissionState, Profile
from broker.security.principal import Who, parse_principal

PAYLOAD = 256
SERVICES = (1, 100)
GRANTS = 1_000
READ_BYTES = 256 * 1024
ROUNDS = 400  # reads in one sample
REPEATS = 9
YARDSTICK = "everything permitted"
_PEER = Who("CN=orders,O=shop", "orders")
_NEXT_HOP = NetworkAddress("next")


class _Nowhere:
    """An outlet that takes everything."""

    max_frame = MAX_FRAME
    is_narrow = False
    can_send = True

    def send(self, data: Buffer) -> int:
        return len(data)

    def keep_rest(self, rest: Buffer) -> None:
        raise AssertionError(f"{len(rest)} bytes were not taken")


class _Peer:
    """Where the frames come from."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        raise AssertionError(f"{disposition}: {len(frame)} bytes")


def measure(*, kernel: str = "", rounds: int = ROUNDS, repeats: int = REPEATS) -> list[Row]:
    """
    Rows for one service and for many.

    Args:
        kernel: Which one walks; the best there is when empty.
        rounds: Reads in a sample.
        repeats: Samples of each.
    """
    rows: list[Row] = []
    for count in SERVICES:
        names = service_names(count)
        passes = {
            YARDSTICK: _pass(names, OPEN, kernel),
            f"{GRANTS + 1:,} grants": _pass(names, _granted(names), kernel),
        }
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in passes}
        for _ in range(repeats):
            for name, take in passes.items():
                samples[name].append({"cpu_ns": take(rounds)})
        case = f"{PAYLOAD} B payload, {count} service{'s' * (count != 1)}"
        rows += [
            row_of(("permissions", case, "pass", name), "cpu_ns", taken, yardstick=YARDSTICK)
            for name, taken in samples.items()
        ]
    return rows


def _granted(services: list[str]) -> Profile:
    """What a peer may send by default deny: these by pattern, and a thousand others by name."""
    everybody = parse_principal("CN=*,O=shop")
    rules = [
        PermissionRule(Permission.SEND, f"//other/service-{number}", everybody, PermissionState.GRANT)
        for number in range(GRANTS)
    ]
    prefix = services[0][: services[0].rindex("-")]
    rules.append(PermissionRule(Permission.SEND, f"{prefix}*", everybody, PermissionState.GRANT))
    profile = Grants(rules, is_default_deny=True).profile(_PEER)
    assert not profile.is_open
    return profile


def _pass(services: list[str], profile: Profile, kernel: str) -> Callable[[int], float]:
    """Walks so many reads; CPU nanoseconds a frame."""
    forwarder = Forwarder(
        Limits(pool_bytes=1 << 24, max_frame=MAX_FRAME, max_hops=16),
        deliver=lambda *_: None,
        request_link=lambda _: None,
        health_of=lambda _: AddressHealth.UNTRIED,
        kernel=choose_kernel(kernel),
    )
    forwarder.set_routing(
        table=build_table([Route("all", _NEXT_HOP)], now=datetime.now(UTC)), hosted=hosted({}), is_forwarding=True
    )
    forwarder.table.outbox(_NEXT_HOP).outlet = _Nowhere()
    one = len(frames(services[:1], PAYLOAD, count=1))
    count = READ_BYTES // one
    data = frames(services, PAYLOAD, count=count)
    peer = _Peer()

    def take(rounds: int) -> float:
        slab, now, spent = forwarder.slab, time.monotonic(), 0
        for _ in range(rounds):
            slab[: len(data)] = data  # the pass has added one to every hop count
            begun = time.process_time_ns()
            batch = forwarder.forward(slab, len(data), now, peer, profile)
            spent += time.process_time_ns() - begun
            assert batch.consumed == len(data), "frames are left over"
        return spent / (rounds * count)

    rest = data
    while rest:  # a walk ends early where it has met too many names that it does not know yet
        forwarder.slab[: len(rest)] = rest
        rest = rest[forwarder.forward(forwarder.slab, len(rest), time.monotonic(), peer, profile).consumed :]
    return take
