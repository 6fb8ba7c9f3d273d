"""A small fleet; `make fleets` has a thousand gateways and a hundred thousand endpoints."""

from tests.simulation.fleet import SMALL, crowd, distribution, failover, storm


def test_conversations_are_spread_and_only_those_of_a_gateway_that_is_gone_move() -> None:
    found = distribution(SMALL)

    assert found["conversations of a gateway, most"] < 40 + 2 * found["three sigma of pure chance"]
    assert found["conversations of a gateway, least"] > 40 - 2 * found["three sigma of pure chance"]
    assert found["conversations of a gateway, most"] == found["moved when the fullest is gone"]


def test_crowd_does_not_knock_in_step_and_is_back_within_the_longest_wait() -> None:
    figures = storm(SMALL)

    assert (0, True) == (figures["missing"], figures["seconds until all are back"] < 12.0)
    assert figures["fullest tenth of a second while away, times the mean"] < 5.0


def test_every_gateway_learns_of_a_failover() -> None:
    reset, silent = failover(SMALL.gateways, is_silent=False), failover(SMALL.gateways, is_silent=True)

    assert (SMALL.gateways, SMALL.gateways) == (reset["know the partner"], silent["know the partner"])
    assert reset["seconds until all know"] < 1.0
    assert 30.0 < silent["seconds until all know"] < 47.0


def test_everything_comes_once_and_in_order_through_a_fleet_of_whole_instances() -> None:
    found = crowd((SMALL.talkers, SMALL.hops), SMALL.messages)

    assert (1000, 0, 0) == (found["messages delivered"], found["doubled, out of order, or lost"], found["dropped"])
