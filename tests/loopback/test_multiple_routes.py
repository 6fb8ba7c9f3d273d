"""
The examples of "Using multiple routes in Service Broker" on real daemons, with the article's own scripts.

Every server and every gateway is a process. A message counts as arrived when the application of the target has
received it, and each test ends with what every application has heard on every dialog: no more, no less, and in order.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from broker.conversation.message_types import error_body
from broker.routing.decide import pick_instance
from examples.demo.topology import Daemon, Topology, wait_for
from tests.loopback.multiple_routes import (
    DATABASES,
    FORWARDING,
    HIGH_AVAILABILITY,
    HIGH_AVAILABILITY_RETURN,
    INSTANCES,
    LOAD_BALANCING,
    RETURN,
    UNFAIR,
    Application,
    add_servers,
    as_here,
    deploy,
    without_broker_instance,
)

SECONDS = 60.0
DIALOGS = 10_000
LIKELY = 10.83  # chi-square with one degree of freedom is above this once in a thousand fair splits
TWO_TARGETS = error_body(-8495, "another instance of the service has this conversation").decode()

Open = Callable[[str], Application]
Heard = dict[uuid.UUID, list[str]]


@pytest.fixture
def application(net: Topology) -> Iterator[Open]:
    """Opens the application of a server; closed at the end."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Application(net.daemons[name]))


@pytest.fixture(autouse=True)
def same_conversation_ids_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The randomness of load balancing comes from random conversation ids, and a fair split of those is called unlikely
    once in a thousand runs. With the same ids every run is the same run; all that decides is in the ids, in the fixed
    broker instances, and in the daemons.
    """
    dice = random.Random(4022)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128), version=4))


def chi_square(split: Counter[str], shares: Mapping[str, int]) -> float:
    """How far a split is from these shares."""
    expected = {name: split.total() * share / sum(shares.values()) for name, share in shares.items()}
    return sum((split[name] - expected[name]) ** 2 / expected[name] for name in shares)


def picks(conversations: set[uuid.UUID], shares: Mapping[str, int]) -> dict[str, set[uuid.UUID]]:
    """Which database each dialog belongs to by the rule, a pure function of conversation id and broker instances."""
    weights = {uuid.UUID(INSTANCES[database]).bytes: share for database, share in shares.items()}
    picked: dict[str, set[uuid.UUID]] = {database: set() for database in shares}
    for conversation in conversations:
        instance = str(uuid.UUID(bytes=pick_instance(conversation.bytes, weights)))
        picked[next(database for database in shares if INSTANCES[database] == instance)].add(conversation)
    return picked


def each(conversations: set[uuid.UUID], *bodies: str) -> Heard:
    """The same on every dialog."""
    return {conversation: list(bodies) for conversation in conversations}


def hears(expected: Mapping[Application, Heard]) -> None:
    """Wait until so many messages have come and all are acknowledged: then exactly these were heard, and no others."""
    total = sum(len(bodies) for heard in expected.values() for bodies in heard.values())

    def is_enough() -> bool:
        return sum(len(bodies) for one in expected for bodies in one.listen().values()) >= total

    wait_for(is_enough, seconds=SECONDS, what=f"{total} messages")
    wait_for(lambda: all(one.is_all_acknowledged for one in expected), seconds=SECONDS, what="acknowledgements")
    assert [in_order(heard) for heard in expected.values()] == [in_order(one.listen()) for one in expected]


def in_order(heard: Heard) -> Heard:
    """An Error message is received before what came earlier, when that has not been received yet: here it goes last."""
    return {conversation: sorted(bodies, key=TWO_TARGETS.__eq__) for conversation, bodies in heard.items()}


def load_balancing(net: Topology, script: str) -> None:
    """The load balancing example: three servers with these routes in DatabaseA."""
    add_servers(net, DATABASES)
    deploy(net, {"DatabaseA": script, "DatabaseB": RETURN, "DatabaseC": RETURN})
    net.start()


@pytest.mark.parametrize(
    ("script", "shares"),
    [
        (UNFAIR, {"DatabaseB": 1, "DatabaseC": 1}),
        (LOAD_BALANCING.replace("'DatabaseC', ", "'DatabaseC', WEIGHT = 2, "), {"DatabaseB": 1, "DatabaseC": 2}),
    ],
    ids=["two routes to one of them", "WEIGHT = 2 for one of them"],
)
def test_ten_thousand_dialogs_are_split_by_instance_and_weight_and_each_stays_at_one(
    net: Topology, application: Open, script: str, shares: dict[str, int]
) -> None:
    load_balancing(net, script)
    a, b, c = map(application, DATABASES)

    begun = a.begin(DIALOGS)
    a.say("1")  # before the first acknowledgement of most
    picked = picks(begun, shares)
    hears({a: {}, b: each(picked["DatabaseB"], "0", "1"), c: each(picked["DatabaseC"], "0", "1")})

    assert chi_square(Counter({"DatabaseB": len(b.heard), "DatabaseC": len(c.heard)}), shares) < LIKELY
    assert picked == {database: a.bound_to(database) for database in shares}


def test_a_named_broker_instance_and_a_route_without_one_both_end_load_balancing(
    net: Topology, application: Open
) -> None:
    """The article's two gotchas."""
    load_balancing(net, LOAD_BALANCING)
    a, b, c = map(application, DATABASES)

    named = a.begin(100, broker_instance=INSTANCES["DatabaseC"])
    hears({a: {}, b: {}, c: each(named, "0")})
    route = "CREATE ROUTE [ByName] WITH SERVICE_NAME = 'TargetService', ADDRESS = 'tcp://ServerB:4022'"
    a.daemon.admin.sql(as_here(net, route), "DatabaseA")
    open_ = a.begin(100)

    hears({a: {}, b: each(open_, "0"), c: each(named, "0")})


def dropped(daemon: Daemon) -> Counter[str]:
    """Frames that ended at this instance, by reason."""
    status = daemon.status()
    databases = (database["dropped"] for database in status["databases"].values())
    return sum(map(Counter, databases), Counter(status["forwarding"]["dropped"]))


def busiest(gateways: list[Daemon]) -> Daemon:
    """The gateway that has forwarded most."""
    return max(gateways, key=lambda gateway: gateway.status()["forwarding"]["forwarded"])


def connect_all(servers: list[Application], gateways: list[Daemon]) -> None:
    """Wait until each server is connected to each of these gateways, so that its dialogs are spread over them."""

    def is_connected(server: Application, gateway: Daemon) -> bool:
        known = server.daemon.status()["addresses"]
        return gateway.address in known and known[gateway.address]["health"] == "connected"

    wait_for(
        lambda: all(is_connected(server, gateway) for server in servers for gateway in gateways),
        seconds=SECONDS,
        what="connections to all gateways",
    )


def high_availability(net: Topology, script: str) -> list[Daemon]:
    """The high availability example: two servers, with these routes in DatabaseA, and two gateways, which are given."""
    add_servers(net, ["ServerA", "ServerB", "GatewayA", "GatewayB"])
    deploy(
        net,
        {
            "DatabaseA": script,
            "DatabaseB": HIGH_AVAILABILITY_RETURN,
            "msdb of GatewayA": FORWARDING,
            "msdb of GatewayB": FORWARDING,
        },
    )
    net.start()
    return [net.daemons["GatewayA"], net.daemons["GatewayB"]]


def test_a_gateway_that_is_up_and_leads_nowhere_is_gone_round(net: Topology, application: Open) -> None:
    """Nothing but the missing acknowledgements tells the sender."""
    gateways = high_availability(net, HIGH_AVAILABILITY)
    a, b = application("ServerA"), application("ServerB")
    begun = a.begin(40)
    hears({a: {}, b: each(begun, "0")})
    connect_all([a], gateways)

    dead_end = busiest(gateways)
    dead_end.admin.sql("DROP ROUTE ForwardingRoute", "msdb")
    a.say("1")

    hears({a: {}, b: each(begun, "0", "1")})
    assert dropped(dead_end)["instance not here"] > 0


def test_routes_by_name_to_two_instances_make_two_targets_of_which_the_first_to_answer_stays(
    net: Topology, application: Open
) -> None:
    """
    The trap, step by step. Only one copy of a message is under way at a time, so the second target comes about as
    follows: ServerC is frozen with the first messages in it, no acknowledgement comes, so ServerA tries ServerB, which
    has come meanwhile and answers at once, and then ServerC wakes up.
    """
    # However long ServerC is frozen, its connection is not given up, and what lies in that with it.
    add_servers(net, DATABASES, {"dialog": {"resend_cap": "1s"}, "endpoint": {"heartbeat": "60s"}})
    by_name = without_broker_instance(without_broker_instance(LOAD_BALANCING, "DatabaseB"), "DatabaseC")
    deploy(net, {"DatabaseA": by_name, "DatabaseB": RETURN, "DatabaseC": RETURN})
    server_b, server_c = net.daemons["ServerB"], net.daemons["ServerC"]
    for name in ("ServerA", "ServerC"):
        net.daemons[name].start()
    a, c = application("ServerA"), application("ServerC")
    earlier = a.begin(1)
    hears({a: {}, c: each(earlier, "0")})

    server_c.freeze()
    trapped = a.begin(20)
    wait_for(
        lambda: a.messages_sent == 21 and not a.daemon.status()["forwarding"]["held"],
        seconds=SECONDS,
        what="everything on its way to ServerC, the only one that there is",
    )
    server_b.start()
    b = application("ServerB")
    wait_for(lambda: b.listen() == each(trapped, "0"), seconds=SECONDS, what="the first messages at ServerB")
    wait_for(lambda: a.bound_to("DatabaseB") == trapped, seconds=SECONDS, what="the first acknowledgements")
    server_c.thaw()
    wait_for(
        lambda: all(len(c.listen().get(one, ())) == 2 for one in trapped), seconds=SECONDS, what="errors at ServerC"
    )
    a.say("1")

    said = each(trapped, "0", TWO_TARGETS) | each(earlier, "0", "1")
    hears({a: {}, b: each(trapped, "0", "1"), c: said})
    assert {"CO": 20} == Counter(b.states().values())
    assert {"CO": 1, "ER": 20} == Counter(c.states().values())
    assert dropped(a.daemon)["another instance converses"] >= 20
    assert (trapped, earlier) == (a.bound_to("DatabaseB"), a.bound_to("DatabaseC"))
    c.end(trapped)
    assert {"CO": 1, "CD": 20} == Counter(c.states().values())
