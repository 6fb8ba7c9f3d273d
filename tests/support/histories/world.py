"""
The world of a synthetic history: its instances, their clocks and routes, and what goes wrong in it and when.

Endpoints send and receive, gateways lie between them. For each endpoint the gateways make a tree whose root hands over
to it, so the next hop is a function of where a frame is and whom it is for; incidents change that function for a while:

- *failover*: two gateways are a pair; what went to the one goes to the other from an instant on, and back later;
- *loop*: a gateway sends some of the frames for an endpoint back to where they came from;
- *stop*: a gateway takes nothing; whoever has a frame for it keeps the frame.

Nodes are numbers, times microseconds since the beginning of the history, as a clock that is right would tell them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Longs: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

SECOND = 1_000_000  # microseconds
HOUR = 3_600 * SECOND
NEVER = 2**62  # an instant that does not come
SERVICES_EACH = 2  # of an endpoint that receives
DEEPEST = 15  # gateways of a tree that frames enter it by: a binary tree with so many has four levels
PORT = 4022
LOOP_LONGEST = 120 * SECOND  # frames are sent again all the time meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    What is asked for.

    Shape: `messages` over all dialogs, exactly; `instances` at least three; `hot_share` of all messages in one dialog;
    `sample` of dialogs that are journalled; `clocks_apart` seconds by which every third clock is wrong; `late_share` of
    files that some rows miss, which follow in a later file; `doubled` of the duplicates that were delivered once more;
    `abandoned` of the messages that nobody sends again; `lost` on each link, `dropped` at each gateway, `held` there
    for long, as shares of the frames; `has_bad_files` adds files that a reader has to refuse, or to know as copies.
    """

    messages: int
    instances: int
    seed: int
    hours: float = 24.0
    hot_share: float = 0.0
    sample: float = 1.0
    clocks_apart: float = 0.0
    late_share: float = 0.0
    doubled: float = 0.0
    abandoned: float = 0.0005
    lost: float = 0.003
    dropped: float = 0.002
    held: float = 0.001
    has_bad_files: bool = False

    def __post_init__(self) -> None:
        if self.instances < 3:
            raise ValueError(f"{self.instances} instances: it takes a sender, a gateway and a target, so 3 or more")
        if self.messages < 1 or self.hours <= 0:
            raise ValueError("a history needs at least one message, and some time")
        shares = ("hot_share", "sample", "late_share", "doubled", "abandoned", "lost", "dropped", "held")
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it is a share, 0 .. 1")

    @property
    def duration(self) -> int:
        """Microseconds of the history."""
        return int(self.hours * HOUR)


class Loop(NamedTuple):
    """From `begin` to `end`, `share` of the frames for `endpoint` at `node` go back to `back_to`."""

    node: int
    back_to: int
    endpoint: int
    begin: int
    end: int
    share: float


class Stop(NamedTuple):
    """From `begin` to `end` a gateway takes nothing."""

    node: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class World:
    """
    Shape: `names` by node; `next_hop` [node, endpoint]; `pair` two gateways, of which the second has taken over after
    an odd number of `failovers`, for the endpoints `paired`; `clock_us` by node, what its clock is ahead; `link_us`
    [node, node], how long frames take on a quiet link.
    """

    names: list[str]
    initiators: Longs
    targets: Longs
    gateways: Longs
    next_hop: Longs
    clock_us: Longs
    link_us: Longs
    paired: Flags
    pair: tuple[int, int] | None
    failovers: list[int]
    loops: list[Loop]
    stops: list[Stop]

    @property
    def services(self) -> list[str]:
        """By number: one for each initiator, SERVICES_EACH for each target; see `service_of`."""
        senders = [f"//synthetic/{self.names[node]}" for node in self.initiators]
        return senders + [
            f"//synthetic/{self.names[node]}/{number}" for node in self.targets for number in range(SERVICES_EACH)
        ]

    def address(self, node: int) -> str:
        """Where a node listens."""
        return address_of(self.names[node])

    def following(self, node: Longs, endpoint: Longs, at: Longs, rng: np.random.Generator) -> Longs:
        """Where frames for these endpoints go next from these nodes at these instants."""
        towards: Longs = self.next_hop[node, endpoint].copy()
        if self.pair is not None:
            first, second = self.pair
            has_moved = np.searchsorted(np.asarray(self.failovers), at, side="right") % 2 == 1
            towards[has_moved & self.paired[endpoint] & (towards == first)] = second
        for loop in self.loops:
            is_in = (node == loop.node) & (endpoint == loop.endpoint) & (at >= loop.begin) & (at < loop.end)
            sent_back = np.flatnonzero(is_in)
            towards[sent_back[rng.random(sent_back.size) < loop.share]] = loop.back_to
        return towards

    def when_taken(self, node: Longs, at: Longs, rng: np.random.Generator) -> Longs:
        """When these nodes take what is offered them at these instants: at once, unless they have stopped."""
        taken = at.copy()
        for stop in self.stops:
            waits = np.flatnonzero((node == stop.node) & (taken >= stop.begin) & (taken < stop.end))
            taken[waits] = stop.end + rng.integers(0, 2 * SECOND, waits.size)
        return taken

    def stopped_while(self, node: Longs, entered: Longs, left: Longs) -> Longs:
        """When these nodes stopped while they had a frame in this time; NEVER where they did not."""
        at = np.full(node.size, NEVER, np.int64)
        for stop in self.stops:
            at[(node == stop.node) & (entered < stop.begin) & (left > stop.begin)] = stop.begin
        return at


def address_of(name: str) -> str:
    """Where the instance of a name listens."""
    return f"tcp://{name}.example:{PORT}"


def make_world(scenario: Scenario) -> World:
    """The world of a scenario, the same for the same seed."""
    rng = np.random.default_rng([scenario.seed, 1])
    initiators, targets, gateways = _roles(scenario.instances)
    count = scenario.instances
    names = [f"orders-{n}" for n in range(initiators.size)]
    names += [f"billing-{n}" for n in range(targets.size)] + [f"gateway-{n}" for n in range(gateways.size)]
    pair = (int(gateways[0]), int(gateways[1])) if gateways.size >= 4 else None
    next_hop, paired, edges = _trees(count, gateways, pair, rng)
    duration = scenario.duration
    clock = rng.integers(-200, 200, count)
    clock[::3] += np.int64(scenario.clocks_apart * SECOND) * rng.choice([-1, 1], clock[::3].size)
    return World(
        names=names,
        initiators=initiators,
        targets=targets,
        gateways=gateways,
        next_hop=next_hop,
        clock_us=clock,
        link_us=np.exp(rng.normal(np.log(1_500), 0.8, (count, count))).astype(np.int64) + 450,
        paired=paired,
        pair=pair,
        failovers=[int(duration * 0.4), int(duration * 0.7)],
        loops=_loops(edges, duration, rng),
        stops=_stops(gateways, duration, rng),
    )


def _roles(count: int) -> tuple[Longs, Longs, Longs]:
    """Nodes of initiators, targets and gateways: about a third each."""
    gateways = max(1, (count + 1) // 3)
    initiators = max(1, (count - gateways) // 2)
    nodes = np.arange(count)
    return nodes[:initiators], nodes[initiators : count - gateways], nodes[count - gateways :]


def _trees(
    count: int, gateways: Longs, pair: tuple[int, int] | None, rng: np.random.Generator
) -> tuple[Longs, Flags, list[tuple[int, int, int]]]:
    """The next hops, the endpoints that the pair serves, and edges from gateway to gateway with their endpoints."""
    next_hop = np.full((count, count), -1, np.int64)
    paired = np.zeros(count, np.bool_)
    edges = []
    for endpoint in range(count - gateways.size):
        order = rng.permutation(gateways)
        next_hop[gateways, endpoint] = endpoint
        if pair is not None and endpoint % 2 == 0:
            paired[endpoint] = True
            order = np.concatenate(([pair[0]], order[~np.isin(order, pair)]))
        for place in range(1, order.size):
            towards = int(order[(place - 1) // 2])
            next_hop[order[place], endpoint] = towards
            edges.append((int(order[place]), towards, endpoint))
        enter = order[: min(order.size, DEEPEST)]
        next_hop[: count - gateways.size, endpoint] = rng.choice(enter, count - gateways.size)
    return next_hop, paired, edges


def _loops(edges: list[tuple[int, int, int]], duration: int, rng: np.random.Generator) -> list[Loop]:
    """One in which frames turn round until their hops are spent, and one that half of them leave each time."""
    loops = []
    for number, share in enumerate((1.0, 0.5, 1.0, 0.5)):
        if edges:
            node, towards, endpoint = edges[int(rng.integers(len(edges)))]
            begin = int(duration * (0.1 + 0.2 * number + 0.05 * rng.random()))
            loops.append(Loop(towards, node, endpoint, begin, begin + min(LOOP_LONGEST, duration // 40), share))
    return loops


def _stops(gateways: Longs, duration: int, rng: np.random.Generator) -> list[Stop]:
    """About one in six hours, at least two, of up to ten minutes."""
    stops = []
    for _ in range(max(2, duration // (6 * HOUR))):
        begin = int(duration * rng.uniform(0.05, 0.9))
        length = min(600 * SECOND, duration // 60)
        stops.append(Stop(int(rng.choice(gateways)), begin, begin + int(length * rng.uniform(0.3, 1))))
    return stops
