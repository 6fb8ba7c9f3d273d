"""Frames of a synthetic history on their way."""

import dataclasses

import numpy as np

from broker.flow import Disposition, Outcome
from broker.pipeline.synthetic.transit import HOP_LIMIT, Transmissions, Travelled, code_of, travel
from broker.pipeline.synthetic.world import NEVER, Loop, Scenario, World, make_world

QUIET = Scenario(messages=1, instances=12, seed=5, lost=0, dropped=0, held=0)


def quiet_world() -> World:
    return dataclasses.replace(make_world(QUIET), loops=[], stops=[], pair=None)


def sent(world: World, count: int) -> Transmissions:
    rng = np.random.default_rng(2)
    leaves = np.sort(rng.integers(1_000, QUIET.duration, count))
    nothing = np.zeros(count, np.int64)
    return Transmissions(
        rng.choice(world.initiators, count), rng.choice(world.targets, count), leaves - 500, leaves, nothing, nothing
    )


def way(gone: Travelled, transmission: int) -> list[int]:
    """The nodes, in order of steps."""
    mine = np.flatnonzero(gone.visits.transmission == transmission)
    return [int(node) for node in gone.visits.node[mine[np.argsort(gone.visits.step[mine])]]]


def test_a_frame_follows_the_routes() -> None:
    """From its sender over the next hops to its endpoint, where it is delivered."""
    world = quiet_world()
    frames = sent(world, 50)

    gone = travel(frames, world, QUIET, np.random.default_rng(3))

    for number in range(50):
        nodes = way(gone, number)
        endpoint = int(frames.endpoint[number])
        assert [frames.source[number], endpoint] == [nodes[0], nodes[-1]]
        assert [int(world.next_hop[node, endpoint]) for node in nodes[:-1]] == nodes[1:]
    assert (gone.arrived < NEVER).all()


def test_time_does_not_run_backwards() -> None:
    """A visit begins behind the end of the one before."""
    world = quiet_world()

    visits = travel(sent(world, 200), world, QUIET, np.random.default_rng(3)).visits

    order = np.lexsort((visits.step, visits.transmission))
    same = np.diff(visits.transmission[order]) == 0
    assert (visits.left >= visits.entered).all()
    assert (visits.entered[order][1:][same] > visits.left[order][:-1][same]).all()


def test_a_frame_in_a_loop_is_dropped_when_its_hops_are_spent() -> None:
    """The sender, sixteen gateways that let it pass, and the one that does not."""
    world = quiet_world()
    target = int(world.targets[0])
    root = next(int(g) for g in world.gateways if world.next_hop[g, target] == target)
    below = next(int(g) for g in world.gateways if world.next_hop[g, target] == root)
    looping = dataclasses.replace(world, loops=[Loop(root, below, target, 0, NEVER, 1.0)])
    frames = sent(looping, 1)
    frames.endpoint[:] = target

    gone = travel(frames, looping, QUIET, np.random.default_rng(3))

    assert HOP_LIMIT + 2 == gone.visits.node.size
    assert code_of(Outcome.DROPPED) == gone.visits.outcome[-1]
    assert code_of(Disposition.HOPS_EXHAUSTED) == gone.visits.reason[-1]
    assert NEVER == gone.arrived[0]


def test_a_lost_frame_is_seen_no_more() -> None:
    """On the first link, when every frame is lost on every link."""
    world = quiet_world()

    gone = travel(sent(world, 20), world, dataclasses.replace(QUIET, lost=1.0), np.random.default_rng(3))

    assert 20 == gone.visits.node.size
    assert (gone.arrived == NEVER).all()
