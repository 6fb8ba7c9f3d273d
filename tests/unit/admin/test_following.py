"""Following what a plan changes: which loops are found, which are new, and what nobody could tell."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from broker.admin.trace import HOPS_MAX, Followed, NotAskedError, RoutingLoop, follow_plan
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, SendingDatabase, answer
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, hosted
from broker.routing.route import Route
from broker.routing.table import RouteTable, build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
TARGET, ORDERS, CONVERSATION = UUID(int=0xFA), UUID(int=0x0D), UUID(int=1)
LOOP = "a loop, until the hops of the message are used up (11285)"


def table(to: str | None) -> RouteTable:
    """One route to a host of this name, or to where the service is."""
    return build_table([Route("r", LOCAL if to is None else NetworkAddress(to))], now=NOW)


class Net:
    """Gateways on hosts of their names; `a` plans, and has a database orders."""

    def __init__(self, routes: Mapping[str, str | None]) -> None:
        self.asked_here: list[ExplainRequest] = []
        self._places = {name: self._place(name, number, to) for number, (name, to) in enumerate(routes.items(), 1)}

    def _place(self, name: str, number: int, to: str | None) -> InstanceView:
        known = hosted({TARGET.bytes: ["S", "T"]} if to is None else {})
        here = RoutingContext(table(to), known, lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table(to))
        homes = {"orders": SendingDatabase(ORDERS.bytes, table(to), None)} if name == "a" else {}  # type: ignore[arg-type]
        return InstanceView(name, UUID(int=number).bytes, here, homes)

    def ask_here(self, request: ExplainRequest) -> ExplainAnswer:
        self.asked_here.append(request)
        return answer(self._places["a"], request)

    def ask_next(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        if address.host not in self._places:
            raise NotAskedError(address, "nobody there")
        return answer(self._places[address.host], request)

    def follow(self, planned: str | None, *requests: ExplainRequest) -> Followed:
        """Follow these messages, with `a` as it is planned."""
        after = self._place("a", 1, planned)
        return follow_plan([answer(after, request) for request in requests], self.ask_here, self.ask_next)


def arriving(service: str = "S", **more: Any) -> ExplainRequest:
    return ExplainRequest(service, conversation=CONVERSATION, incoming=True, **more)


def test_a_loop_that_appears_is_new() -> None:
    net = Net({"a": None, "b": "a"})

    assert Followed([RoutingLoop("S", f"a -> b -> a: {LOOP}", was_there=False)], []) == net.follow("b", arriving())


def test_a_loop_that_is_there_already_is_old() -> None:
    net = Net({"a": "b", "b": "a"})

    [loop] = net.follow("b", arriving()).loops

    assert loop.was_there


def test_a_loop_of_others_that_a_route_leads_into_is_new() -> None:
    net = Net({"a": None, "b": "c", "c": "b"})

    assert [RoutingLoop("S", f"a -> b -> c -> b: {LOOP}", was_there=False)] == net.follow("b", arriving()).loops


def test_what_arrives_is_no_loop_and_needs_no_second_question() -> None:
    net = Net({"a": "b", "b": None})

    assert Followed([], []) == net.follow("b", arriving(), arriving("T"))
    assert [] == net.asked_here


def test_a_way_without_end_counts_as_a_loop() -> None:
    net = Net({"a": None} | {f"h{number}": f"h{number + 1}" for number in range(HOPS_MAX + 10)})

    [loop] = net.follow("h0", arriving()).loops

    assert loop.path.endswith("after 255 hops a message is dropped (11285)")


def test_where_nobody_can_be_asked_is_said_once() -> None:
    net = Net({"a": None, "b": "beyond"})

    followed = net.follow("b", arriving(), arriving("T"))

    assert [] == followed.loops
    [sentence] = followed.unknown
    assert sentence.startswith("a -> b -> tcp://beyond:4022: not known from there on: nobody there")


def test_today_is_asked_about_the_same_message() -> None:
    net = Net({"a": None, "b": "a"})
    request = arriving(broker_instance=TARGET, from_target=True)

    net.follow("b", request)

    assert [request] == net.asked_here


def test_today_is_asked_about_the_database_where_the_message_begins() -> None:
    net = Net({"a": None, "b": "c", "c": "b"})

    net.follow("b", ExplainRequest("S", conversation=CONVERSATION, database="orders"))

    assert [ExplainRequest("S", conversation=CONVERSATION, database="orders")] == net.asked_here
