"""From instance to instance: where a way ends, who is asked what, and what is said where nobody can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.admin.client import AdminClient, ProblemError
from broker.admin.trace import HOPS_MAX, Directory, NotAskedError, TracedRoute, TraceEnd, ask, follow
from broker.errors import DaemonUnreachableError
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, answer
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, hosted
from broker.routing.route import Route
from broker.routing.table import build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
FAR = UUID(int=0xFA)
CONVERSATION = UUID(int=1)


class Net:
    """Gateways on hosts of their names, each with one route; what ends in None is where the service is."""

    def __init__(self, routes: Mapping[str, str | None], *, services: tuple[str, ...] = ("S",)) -> None:
        self.asked: list[tuple[str, ExplainRequest]] = []
        self._services = services
        self._places = {name: self._place(name, number, to) for number, (name, to) in enumerate(routes.items(), 1)}

    def _place(self, name: str, number: int, to: str | None) -> InstanceView:
        table = build_table([Route("r", LOCAL if to is None else NetworkAddress(to))], now=NOW)
        known = hosted({FAR.bytes: self._services} if to is None else {})
        here = RoutingContext(table, known, lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table)
        return InstanceView(name, UUID(int=number).bytes, here, {})

    def ask(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        self.asked.append((address.host, request))
        if address.host not in self._places:
            raise NotAskedError(address, "nobody there")
        return answer(self._places[address.host], request)

    def follow(self, first: str, **request: Any) -> TracedRoute:
        question = ExplainRequest("S", request.pop("broker_instance", None), CONVERSATION, **request)
        return follow(answer(self._places[first], question), self.ask)


def names(way: TracedRoute) -> list[str]:
    return [hop.instance for hop in way.hops]


def test_the_way_is_followed_to_where_the_service_is() -> None:
    way = Net({"a": "b", "b": "c", "c": None}).follow("a")

    assert (["a", "b", "c"], TraceEnd.DECIDED) == (names(way), way.end)
    assert f"a -> b -> c: delivered here, to the database {FAR} by route r" == way.sentence
    assert way.arrives


def test_each_instance_is_asked_about_the_same_message_as_it_arrives() -> None:
    net = Net({"a": "b", "b": None})

    net.follow("a", broker_instance=FAR, from_target=True)

    assert [("b", ExplainRequest("S", FAR, CONVERSATION, incoming=True, from_target=True))] == net.asked


def test_a_conversation_that_names_nobody_still_names_nobody() -> None:
    net = Net({"a": "b", "b": None})

    net.follow("a")

    assert None is net.asked[0][1].broker_instance


def test_a_way_that_ends_at_once_asks_nobody() -> None:
    net = Net({"a": None})

    assert ["a"] == names(net.follow("a"))
    assert [] == net.asked


def test_a_loop_is_told_with_its_path_and_each_instance_once() -> None:
    way = Net({"a": "b", "b": "c", "c": "b"}).follow("a")

    assert (["a", "b", "c"], TraceEnd.LOOP) == (names(way), way.end)
    assert "a -> b -> c -> b: a loop, until the hops of the message are used up (11285)" == way.sentence
    assert not way.arrives


def test_coming_back_to_where_it_began_is_no_loop_yet() -> None:
    """What begins in a database is decided by that database; what comes back, by msdb."""
    net = Net({"a": "b", "b": "a"})
    begun = net.follow("b").hops[0]
    begins = msgspec.structs.replace(begun.explanation.passes[0], is_incoming=False)
    first = msgspec.structs.replace(begun, explanation=msgspec.structs.replace(begun.explanation, passes=(begins,)))

    way = follow(first, net.ask)

    assert ["b", "a", "b"] == names(way)
    assert "b -> a -> b -> a: a loop" in way.sentence


def test_where_nobody_can_be_asked_the_way_is_known_so_far_and_good_so_far() -> None:
    way = Net({"a": "b", "b": "beyond"}).follow("a")

    assert (["a", "b"], TraceEnd.UNKNOWN) == (names(way), way.end)
    assert way.sentence.startswith("a -> b -> tcp://beyond:4022: not known from there on: nobody there; say where")
    assert "--admin tcp://beyond:4022=http://HOST:PORT" in way.sentence
    assert way.arrives


def test_a_way_that_never_ends_is_given_up() -> None:
    """Another instance each time, so no loop."""
    net = Net({f"h{number}": f"h{number + 1}" for number in range(HOPS_MAX + 10)})

    way = net.follow("h0")

    assert TraceEnd.TOO_FAR is way.end
    assert HOPS_MAX + 1 == len(way.hops)
    assert way.sentence.endswith("after 255 hops a message is dropped (11285)")
    assert not way.arrives


def test_a_service_that_is_not_where_the_message_comes_to_is_no_way() -> None:
    way = Net({"a": "b", "b": None}, services=()).follow("a", broker_instance=FAR)

    assert "answers with the error -8490" in way.sentence
    assert not way.arrives


def test_a_message_that_is_dropped_or_delayed_has_no_way() -> None:
    empty = Net({"a": None}, services=("Other",))._places["a"]

    assert not answer(empty, ExplainRequest("S")).explanation.has_way
    assert answer(empty, ExplainRequest("Other")).explanation.has_way


# --- asking ---


def told(name: str, *addresses: str) -> dict[str, Any]:
    """The JSON of an answer."""
    plain: dict[str, Any] = msgspec.to_builtins(answer(Net({name: None})._places[name], ExplainRequest("S")))
    return plain | {"addresses": [*addresses]}


def test_an_answer_is_asked_for_with_the_fields_of_the_api(fake_admin: Any) -> None:
    fake_admin.answers["/v1/explain"] = (200, told("b"))

    got = ask(AdminClient(fake_admin.path), ExplainRequest("S", FAR, incoming=True))

    assert "b" == got.instance
    [(_, _, body)] = fake_admin.asked
    assert {"to": "S", "broker_instance": str(FAR), "incoming": True} == {
        name: value for name, value in body.items() if value
    }


def test_a_refusal_is_passed_on(fake_admin: Any) -> None:
    fake_admin.answers["/v1/explain"] = (404, {"detail": "the database 'x' does not exist here"})

    with pytest.raises(ProblemError, match="does not exist here"):
        ask(AdminClient(fake_admin.path), ExplainRequest("S"))


def test_an_answer_of_another_version_is_told_as_such(fake_admin: Any) -> None:
    fake_admin.answers["/v1/explain"] = (200, {"name": "something else"})

    with pytest.raises(DaemonUnreachableError, match=r"its answer is not understood: .*instance"):
        ask(AdminClient(fake_admin.path), ExplainRequest("S"))


def test_an_address_is_asked_where_somebody_said(fake_admin: Any) -> None:
    """Whoever says where to ask is believed: behind a balancer an instance does not know all its addresses."""
    fake_admin.answers["/v1/explain"] = (200, told("b"))

    got = Directory({NetworkAddress("b"): fake_admin.path})(NetworkAddress("b"), ExplainRequest("S"))

    assert "b" == got.instance


def test_a_refusal_and_silence_say_where_the_question_may_be_asked_instead(fake_admin: Any, tmp_path: Path) -> None:
    fake_admin.answers["/v1/explain"] = (403, {"detail": "only loopback"})
    directory = Directory({NetworkAddress("b"): fake_admin.path, NetworkAddress("c"): tmp_path / "none.sock"})

    for host, problem in (
        ("b", "admin.sock answers: only loopback; say where"),
        ("c", "no daemon answers on .*; say where to ask"),
    ):
        with pytest.raises(NotAskedError, match=problem):
            directory(NetworkAddress(host), ExplainRequest("S"))


@pytest.mark.parametrize(("host", "url"), [("b.example", "https://b.example:9422"), ("::1", "http://[::1]:9422")])
def test_an_address_that_nobody_named_is_asked_on_its_host_and_must_be_known_there(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    """Several instances on one host: the one on the documented port may be another."""
    answers = {"request": lambda self, *_: told("b", str(NetworkAddress(host, 1))) | {"instance": str(self.where)}}
    monkeypatch.setattr(AdminClient, "request", answers["request"])
    directory = Directory({})

    got = directory(NetworkAddress(host, 1), ExplainRequest("S"))

    assert url == got.instance
    with pytest.raises(NotAskedError, match="does not know the address as its own; say where to ask"):
        directory(NetworkAddress(host, 2), ExplainRequest("S"))


def test_who_could_not_be_asked_is_not_asked_again(fake_admin: Any) -> None:
    """A thousand services behind one instance that is down must not take a thousand time-outs."""
    fake_admin.answers["/v1/explain"] = (403, {"detail": "only loopback"})
    directory = Directory({NetworkAddress("b"): fake_admin.path})

    for service in ("S", "T"):
        with pytest.raises(NotAskedError, match="only loopback"):
            directory(NetworkAddress("b"), ExplainRequest(service))

    assert ["S"] == [body["to"] for _, _, body in fake_admin.asked]
