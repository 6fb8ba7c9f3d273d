"""Going round an address that does not answer: which one is next, and which are never taken."""

from __future__ import annotations

import pytest

from broker.dialog.transmitter import alternatives, detour
from broker.flow import Disposition
from broker.forwarding.outbox import Outbox, Ports
from broker.forwarding.pool import Pool
from broker.routing.address import NetworkAddress
from broker.routing.choose import Candidate, Health
from broker.routing.decide import Decision
from broker.routing.route import Route

C, U, S = Health.CONNECTED, Health.UNTRIED, Health.SUPPRESSED


def decision(*healths: Health) -> Decision:
    """Addresses 1, 2, .. in this order, each of a route that is called like its port."""
    addresses = [NetworkAddress("host", port) for port in range(1, len(healths) + 1)]
    candidates = tuple(
        Candidate(address, Route(str(address.port), address), health)
        for address, health in zip(addresses, healths, strict=True)
    )
    return Decision(Disposition.FORWARDED, 1, candidates[0].route if candidates else None, candidates=candidates)


class Outboxes:
    """Makes outboxes of addresses. Shape: `asked` the ports for which a link was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, address: NetworkAddress) -> Outbox:
        return Outbox(address, pool=Pool(0), want=lambda: self.asked.append(address.port), ports=Ports(lambda *_: None))


def order(one: Decision) -> list[int]:
    return [candidate.address.port for candidate in one.candidates]


@pytest.mark.parametrize(
    ("healths", "expected"),
    [
        ((), [[]]),
        ((C,), [[1]]),
        ((S,), [[1]]),
        ((S, S), [[1, 2]]),
        ((C, S), [[1, 2]]),
        ((C, U), [[1, 2], [2, 1]]),
        ((C, C, U, S), [[1, 2, 3, 4], [2, 3, 1, 4], [3, 1, 2, 4]]),
    ],
)
def test_each_usable_address_is_in_front_once(healths: tuple[Health, ...], expected: list[list[int]]) -> None:
    assert expected == [order(one) for one in alternatives(decision(*healths))]


def test_the_first_alternative_is_the_decision_and_the_route_is_that_of_the_address_in_front() -> None:
    first, second = alternatives(decision(C, C))

    assert decision(C, C) == first
    assert second.route is not None
    assert "2" == second.route.name


@pytest.mark.parametrize(
    ("healths", "fronts"),
    [
        ((C, C), [2, 1, 2]),
        ((C, C, C), [2, 3, 1]),
        ((C, C, U), [2, 1, 2]),
        ((U, U), [2, 1, 2]),
        ((C,), [1, 1, 1]),
        ((C, U), [1, 1, 1]),
        ((C, S), [1, 1, 1]),
        ((S, S), [1, 1, 1]),
    ],
)
def test_detours_take_turns_among_those_that_are_as_good_as_the_best(
    healths: tuple[Health, ...], fronts: list[int]
) -> None:
    one = decision(*healths)
    taken = []

    for _ in fronts:
        one = detour(one, Outboxes())
        taken.append(order(one)[0])

    assert fronts == taken


def test_decision_without_addresses_has_no_detour() -> None:
    assert decision() == detour(decision(), Outboxes())


def test_links_to_addresses_that_were_not_tried_are_asked_for() -> None:
    outboxes = Outboxes()

    detour(decision(C, U, U, S), outboxes)

    assert [2, 3] == outboxes.asked
