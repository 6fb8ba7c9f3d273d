"""
The examples of "Using multiple routes in Service Broker" on real daemons.

Every server and every gateway is a process. A message counts as arrived when the application of the target has
received it, and each test ends with what every application has heard on every dialog: no more, no less, and in order.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

import pytest

import broker
from broker.conversation.body_check import error_body
from broker.routing.decide import pick_instance
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import PATIENCE, route, service

DATABASES = {"ServerA": "DatabaseA", "ServerB": "DatabaseB", "ServerC": "DatabaseC"}
INSTANCES = {database: str(uuid.uuid5(uuid.NAMESPACE_OID, database)) for database in DATABASES.values()}
INITIATOR, TARGET = "InitiatorService", "TargetService"
BATCH = 1000  # messages in one transaction
TWO_TARGETS = error_body(-8495, "another instance of the service has this conversation").decode()

Heard = dict[uuid.UUID, list[str]]


def add(net: Topology, *names: str, settings: Mapping[str, Mapping[str, Any]] | None = None) -> list[Daemon]:
    """Servers with their databases and services; whatever has none is a gateway."""
    for name in names:
        databases = [DATABASES[name]] if name in DATABASES else []
        net.add(name, forwarding=not databases, databases=databases, broker_instances=INSTANCES, settings=settings)
    return [net.daemons[name] for name in names]


def deploy(daemon: Daemon, net: Topology, *ways: str) -> None:
    """Give a server's database its service and its routes, and a gateway's msdb the routes."""
    if daemon.name not in DATABASES:
        net.script(daemon.name, "msdb", "".join(ways))
        return
    own = INITIATOR if daemon.name == "ServerA" else TARGET
    net.script(daemon.name, DATABASES[daemon.name], service(own) + "".join(ways))


def way(to: str, daemon: Daemon, database: str = "", more: str = "") -> str:
    """A route to a service at a server or a gateway, for one of its databases or by name alone."""
    instance = f", BROKER_INSTANCE = '{INSTANCES[database]}'" if database else ""
    return route(f"{to} {daemon.name} {database}".strip(), to, daemon.address, f"{instance}{more}")


class Application:
    """
    The application on a server's database; used by one thread.

    Shape: `dialogs` by conversation id, those begun here or heard of; `heard` the bodies of each, in order of arrival.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.database = DATABASES[daemon.name]
        self.dialogs: dict[uuid.UUID, broker.Dialog] = {}
        self.heard: Heard = {}
        self._db = daemon.connect(self.database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def begin(self, count: int, *, broker_instance: str | None = None) -> set[uuid.UUID]:
        """BEGIN DIALOG so many times, a first message `0` on each; the new conversation ids."""
        services = {"from_service": INITIATOR, "to_service": TARGET, "broker_instance": broker_instance}
        begun = set()
        with self._db:
            for _ in range(count):
                dialog = broker.begin_dialog(self._db, **services)  # type: ignore[arg-type]
                dialog.send("0")
                self.dialogs[dialog.conversation_id] = dialog
                begun.add(dialog.conversation_id)
        return begun

    def say_more(self) -> None:
        """SEND the second message on every dialog."""
        with self._db:
            for dialog in self.dialogs.values():
                dialog.send("1")

    def end(self, conversations: Iterable[uuid.UUID]) -> None:
        """END CONVERSATION of each."""
        with self._db:
            for conversation in conversations:
                self.dialogs[conversation].end()

    def listen(self) -> Heard:
        """RECEIVE what is there now; all that was ever heard."""
        while True:
            with self._db:
                messages = broker.receive(self._db, queue="Inbox", top=BATCH)
            for message in messages:
                self.dialogs.setdefault(message.dialog.conversation_id, message.dialog)
                self.heard.setdefault(message.dialog.conversation_id, []).append(message.body.decode())
            if len(messages) < BATCH:
                return self.heard

    @property
    def messages_sent(self) -> int:
        """Messages that its daemon has handed to a next hop since it was started, resends left out."""
        return sum(one["sent"] for one in self.daemon.status()["databases"][self.database]["services"].values())

    def bound_to(self, database: str) -> set[uuid.UUID]:
        """The dialogs that have fixed this database as their far side, as the original's view tells."""
        query = "SELECT conversation_id FROM sys.conversation_endpoints WHERE far_broker_instance = "
        rows = self.daemon.query(f"{query}'{INSTANCES[database].upper()}'", self.database)
        return {uuid.UUID(row["conversation_id"]) for row in rows}

    def states(self) -> Counter[str]:
        """How many dialogs of its database are in each state, as the original's view tells."""
        return Counter(row["state"] for row in self.daemon.query("SELECT state FROM sys.conversation_endpoints"))


Open = Callable[[Daemon], Application]


@pytest.fixture
def application() -> Iterator[Open]:
    """Opens the application of a server; closed at the end."""
    with ExitStack() as stack:
        yield lambda daemon: stack.enter_context(Application(daemon))


def each(conversations: set[uuid.UUID], *bodies: str) -> Heard:
    """The same on every dialog."""
    return {conversation: list(bodies) for conversation in conversations}


def hears(expected: Mapping[Application, Heard]) -> None:
    """Wait until so many messages have come and all are acknowledged: then exactly these were heard, and no others."""
    total = sum(len(bodies) for heard in expected.values() for bodies in heard.values())

    def is_enough() -> bool:
        return sum(len(bodies) for one in expected for bodies in one.listen().values()) >= total

    def is_acknowledged(one: Application) -> bool:
        return not one.daemon.query("SELECT TOP 1 * FROM sys.transmission_queue", one.database)

    wait_for(is_enough, seconds=PATIENCE, what=f"{total} messages")
    wait_for(lambda: all(map(is_acknowledged, expected)), seconds=PATIENCE, what="acknowledgements")
    assert [in_order(heard) for heard in expected.values()] == [in_order(one.listen()) for one in expected]


def in_order(heard: Heard) -> Heard:
    """An Error message is received before what came earlier, when that has not been received yet: here it goes last."""
    return {conversation: sorted(bodies, key=TWO_TARGETS.__eq__) for conversation, bodies in heard.items()}


def dropped(daemon: Daemon) -> Counter[str]:
    """Frames that ended at this instance, by reason."""
    status = daemon.status()
    databases = (database["dropped"] for database in status["databases"].values())
    return sum(map(Counter, databases), Counter(status["forwarding"]["dropped"]))


@pytest.mark.parametrize("weight", [1, 2])
@pytest.mark.promise("Messages reach the wrong target")
def test_dialogs_are_split_by_instance_and_weight_and_each_stays_at_one(
    net: Topology, application: Open, weight: int
) -> None:
    """Which one a dialog belongs to is a function of its id, broker instances and weights."""
    servers = add(net, *DATABASES)
    there = way(TARGET, servers[1], "DatabaseB"), way(TARGET, servers[2], "DatabaseC", f", WEIGHT = {weight}")
    for server, ways in zip(servers, (there, *[[way(INITIATOR, servers[0], "DatabaseA")]] * 2), strict=True):
        deploy(server, net, *ways)
    net.start()
    a, b, c = map(application, servers)

    begun = a.begin(2000)
    a.say_more()  # before the first acknowledgement of most
    weights = {uuid.UUID(INSTANCES[name]).bytes: share for name, share in (("DatabaseB", 1), ("DatabaseC", weight))}
    of_b = uuid.UUID(INSTANCES["DatabaseB"]).bytes
    at_b = {one for one in begun if pick_instance(one.bytes, weights) == of_b}

    hears({a: {}, b: each(at_b, "0", "1"), c: each(begun - at_b, "0", "1")})
    assert (at_b, begun - at_b) == (a.bound_to("DatabaseB"), a.bound_to("DatabaseC"))


@pytest.mark.promise("Messages reach the wrong target")
def test_a_named_broker_instance_and_a_route_without_one_both_end_load_balancing(
    net: Topology, application: Open
) -> None:
    """The article's two gotchas."""
    servers = add(net, *DATABASES)
    deploy(servers[0], net, *(way(TARGET, server, DATABASES[server.name]) for server in servers[1:]))
    for server in servers[1:]:
        deploy(server, net, way(INITIATOR, servers[0], "DatabaseA"))
    net.start()
    a, b, c = map(application, servers)

    named = a.begin(100, broker_instance=INSTANCES["DatabaseC"])
    hears({a: {}, b: {}, c: each(named, "0")})
    a.daemon.admin.sql(way(TARGET, servers[1]), "DatabaseA")
    open_ = a.begin(100)

    hears({a: {}, b: each(open_, "0"), c: each(named, "0")})


@pytest.mark.promise("A next hop is back, and nothing flows")
def test_a_gateway_that_is_up_and_leads_nowhere_is_gone_round(net: Topology, application: Open) -> None:
    """Nothing but the missing acknowledgements tells the sender."""
    near, far, *gateways = add(net, "ServerA", "ServerB", "GatewayA", "GatewayB")
    deploy(near, net, *(way(TARGET, one, "DatabaseB") for one in gateways))
    deploy(far, net, *(way(INITIATOR, one, "DatabaseA") for one in gateways))
    for gateway in gateways:
        deploy(gateway, net, way(TARGET, far, "DatabaseB"), way(INITIATOR, near, "DatabaseA"))
    net.start()
    a, b = application(near), application(far)
    begun = a.begin(40)
    hears({a: {}, b: each(begun, "0")})

    def is_connected(gateway: Daemon) -> bool:
        return bool(near.status()["addresses"].get(gateway.address, {}).get("health") == "connected")

    wait_for(lambda: all(map(is_connected, gateways)), seconds=PATIENCE, what="connections to both gateways")
    dead_end = max(gateways, key=lambda gateway: gateway.status()["forwarding"]["forwarded"])
    dead_end.admin.sql("DROP ROUTE [TargetService ServerB DatabaseB]", "msdb")
    a.say_more()

    hears({a: {}, b: each(begun, "0", "1")})
    assert dropped(dead_end)["instance not here"] > 0


@pytest.mark.promise("R5.2", "case R8", "multiple 24", "multiple 25")
def test_routes_by_name_to_two_instances_make_two_targets_of_which_the_first_to_answer_stays(
    net: Topology, application: Open
) -> None:
    """
    The trap, step by step. Only one copy of a message is under way at a time, so the second target comes about as
    follows: ServerC is frozen with the first messages in it, no acknowledgement comes, so ServerA tries ServerB, which
    has come meanwhile and answers at once, and then ServerC wakes up.
    """
    # However long ServerC is frozen, its connection is not given up, and what lies in that with it.
    settings = {"dialog": {"resend_cap": "1s"}, "endpoint": {"heartbeat": "60s"}}
    near, server_b, server_c = add(net, *DATABASES, settings=settings)
    deploy(near, net, way(TARGET, server_b), way(TARGET, server_c))
    for server in (server_b, server_c):
        deploy(server, net, way(INITIATOR, near, "DatabaseA"))
    near.start()
    server_c.start()
    a, c = application(near), application(server_c)
    earlier = a.begin(1)
    hears({a: {}, c: each(earlier, "0")})

    server_c.freeze()
    trapped = a.begin(20)
    wait_for(
        lambda: a.messages_sent == 21 and not near.status()["forwarding"]["held"],
        seconds=PATIENCE,
        what="everything on its way to ServerC, the only one that there is",
    )
    server_b.start()
    b = application(server_b)
    wait_for(lambda: b.listen() == each(trapped, "0"), seconds=PATIENCE, what="the first messages at ServerB")
    wait_for(lambda: a.bound_to("DatabaseB") == trapped, seconds=PATIENCE, what="the first acknowledgements")
    server_c.thaw()
    wait_for(
        lambda: all(len(c.listen().get(one, ())) == 2 for one in trapped), seconds=PATIENCE, what="errors at ServerC"
    )
    a.say_more()

    said = each(trapped, "0", TWO_TARGETS) | each(earlier, "0", "1")
    hears({a: {}, b: each(trapped, "0", "1"), c: said})
    assert {"CO": 20} == b.states()
    assert {"CO": 1, "ER": 20} == c.states()
    assert dropped(near)["another instance converses"] >= 20
    assert (trapped, earlier) == (a.bound_to("DatabaseB"), a.bound_to("DatabaseC"))
    c.end(trapped)
    assert {"CO": 1, "CD": 20} == c.states()
