"""Routes from the DNS: which name is asked for, which record wins, and how long the route lives."""

import threading
from collections.abc import Iterator
from socketserver import BaseRequestHandler, UDPServer

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from broker.ddl.statements import CreateRoute
from broker.dialog.route_requests import Inquiry
from broker.errors import ConversationError
from broker.routing.route import RouteProperties
from examples.routing_service.srv import SrvRecord, SrvRoutes, choose_record, dns_lookup, record_name, route_name


class NameServer(UDPServer):
    """
    A name server on loopback that knows SRV records.

    Shape: `records` by name without the dot at its end: TTL in seconds and texts such as `10 5 4022 host.example.`;
    `asked` names in the order of asking.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.records: dict[str, tuple[int, list[str]]] = {}
        self.asked: list[str] = []


class Answering(BaseRequestHandler):
    """One question."""

    server: NameServer

    def handle(self) -> None:
        data, sock = self.request
        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text(omit_final_dot=True)
        self.server.asked.append(name)
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if name in self.server.records:
            ttl, texts = self.server.records[name]
            response.answer.append(dns.rrset.from_text(query.question[0].name, ttl, "IN", "SRV", *texts))
        else:
            response.set_rcode(dns.rcode.NXDOMAIN)
        sock.sendto(response.to_wire(), self.client_address)


NAME = "//shop.example/Orders"
RECORD = "_broker._tcp.shop.example"


@pytest.fixture
def server() -> Iterator[NameServer]:
    with NameServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def find(server: NameServer, name: str = NAME) -> list[CreateRoute]:
    return SrvRoutes(dns_lookup(("127.0.0.1", server.server_address[1])), domain=None).find(Inquiry(name))


def refusal(server: NameServer, name: str = NAME) -> str:
    with pytest.raises(ConversationError) as caught:
        find(server, name)
    assert 9750 == caught.value.number
    return caught.value.problem


@pytest.mark.parametrize(
    ("service", "domain", "asked"),
    [
        ("//shop.example/Orders", None, "_broker._tcp.shop.example"),
        ("tcp://Shop.Example:4022/Orders", None, "_broker._tcp.shop.example"),
        ("http://shop.example/Orders/2", None, "_broker._tcp.shop.example"),
        ("https://user@shop.example?x", None, "_broker._tcp.shop.example"),
        ("//shop.example", None, "_broker._tcp.shop.example"),
        ("//shop/Orders", "example.com", "_broker._tcp.shop.example.com"),
        ("//shop/Orders", None, None),
        ("Orders", "example.com.", "_broker._tcp.orders.example.com"),
        ("Orders", None, None),
        ("orders.example", None, "_broker._tcp.orders.example"),
        ("Orders of the shop", "example.com", None),
        ("SQL/ServiceBroker/Other", "example.com", None),
        ("//192.0.2.1/Orders", "example.com", None),
        ("tcp://[2001:db8::1]:4022/Orders", "example.com", None),
        ("//-bad-/Orders", "example.com", None),
        ("//", "example.com", None),
    ],
)
def test_the_name_that_is_asked_for_is_the_host_of_the_service(
    service: str, domain: str | None, asked: str | None
) -> None:
    assert asked == record_name(service, domain=domain)


@pytest.mark.parametrize(("ttl", "lifetime"), [(0, 30), (300, 300), (604_800, 86_400)])
def test_a_record_becomes_a_route_that_lives_as_long(server: NameServer, ttl: int, lifetime: int) -> None:
    server.records[RECORD] = (ttl, ["10 5 4022 one.shop.example."])

    properties = RouteProperties(service_name=NAME, lifetime=lifetime, address="tcp://one.shop.example:4022")
    assert [CreateRoute(route_name(NAME), properties)] == find(server)
    assert [RECORD] == server.asked


def test_the_lowest_priority_wins_and_then_the_weight() -> None:
    records = [SrvRecord(20, 1000, 1, "far"), SrvRecord(10, 30, 1, "heavy"), SrvRecord(10, 10, 1, "light")]

    chosen = [choose_record(records, f"//{number}") for number in range(1000)]

    heavy = sum(one is not None and one.target == "heavy" for one in chosen)
    assert {"heavy", "light"} == {one.target for one in chosen if one is not None}
    assert 650 < heavy < 850


def test_a_service_that_is_not_offered_has_no_route(server: NameServer) -> None:
    assert "holds no host" in refusal(server, "Orders of the shop")
    assert [] == server.asked
    assert "does not exist" in refusal(server)
    server.records[RECORD] = (300, ["0 0 0 ."])
    assert "not offered" in refusal(server)
