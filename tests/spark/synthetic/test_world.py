"""Instances of a synthetic history, their routes, and what goes wrong."""

import dataclasses

import numpy as np
import pytest

from broker.pipeline.synthetic.world import SECOND, Loop, Scenario, Stop, SyntheticError, make_world

RNG = np.random.default_rng(1)


def one(value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([value])


@pytest.mark.parametrize("instances", [3, 4, 7, 12, 40])
def test_every_way_ends_at_its_endpoint(instances: int) -> None:
    """Behind five gateways at most, and no gateway twice."""
    world = make_world(Scenario(messages=1, instances=instances, seed=instances))

    for endpoint in (*world.initiators, *world.targets):
        for node in (*world.initiators, *world.targets):
            way = [node]
            while way[-1] != endpoint or len(way) == 1:
                way.append(world.next_hop[way[-1], endpoint])
            assert len(way) <= 7
            assert len(set(way[1:])) == len(way) - 1


def test_the_pair_takes_turns() -> None:
    """What goes to the one goes to the other between the first and the second failover."""
    world = make_world(Scenario(messages=1, instances=12, seed=1))
    assert world.pair is not None
    endpoint = int(np.flatnonzero(world.paired)[0])
    node = next(n for n in range(12) if world.next_hop[n, endpoint] == world.pair[0])
    quiet = dataclasses.replace(world, loops=[])

    hops = [
        int(quiet.following(one(node), one(endpoint), one(at), RNG)[0])
        for at in (world.failovers[0] - 1, world.failovers[0], world.failovers[1])
    ]

    assert [world.pair[0], world.pair[1], world.pair[0]] == hops


def test_a_loop_sends_back_while_it_lasts() -> None:
    """Nothing before, nothing behind, and no other endpoint."""
    world = make_world(Scenario(messages=1, instances=3, seed=1))
    looping = dataclasses.replace(world, loops=[Loop(2, 0, 1, 10, 20, 1.0)])

    hops = [int(looping.following(one(2), one(1), one(at), RNG)[0]) for at in (9, 10, 19, 20)]

    assert [1, 0, 0, 1] == hops
    assert 0 == looping.following(one(2), one(0), one(15), RNG)[0]


def test_a_stopped_gateway_takes_a_frame_later() -> None:
    """Soon behind the end of the stop; others at once."""
    world = dataclasses.replace(make_world(Scenario(messages=1, instances=3, seed=1)), stops=[Stop(2, 10, 50)])

    taken = world.when_taken(np.array([2, 2, 1]), np.array([9, 10, 10]), RNG)

    assert (9, 10) == (taken[0], taken[2])
    assert 50 <= taken[1] <= 50 + 2 * SECOND


@pytest.mark.parametrize("wrong", [{"instances": 2}, {"messages": 0}, {"hot_share": 1.5}, {"hours": 0.0}])
def test_a_scenario_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    """By name."""
    asked = {"messages": 1, "instances": 3, "seed": 0, **wrong}

    with pytest.raises(SyntheticError):
        Scenario(**asked)  # type: ignore[arg-type]  # the wrong values are the point
