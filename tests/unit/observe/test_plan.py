"""A plan of a running instance: what is compared, what is told of it, and that nothing is changed."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest

import broker
from broker.catalog import handlers as effect
from broker.catalog.catalog import MSDB
from broker.catalog.execute import execute
from broker.client.dialog import begin_dialog
from broker.conversation.state import ConversationState
from broker.daemon.instance import Instance
from broker.ddl.parser import parse_script
from broker.errors import StoreUnavailableError, UnknownNameError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer
from broker.observe import plan as module
from broker.observe.plan import ANY_OTHER, PlanAnswer, PlanRequest, flows_of_database, flows_of_passage, plan_script
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import NO_GUID, Flag
from broker.routing.decide import RoutingFacts, hosted
from broker.routing.plan import Fate, PlannedFlow
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.metadata import put_queue, put_service
from tests.support.loopback import until

NEAR, FAR = "//near", "//far"
TO_FAR = f"CREATE ROUTE far WITH SERVICE_NAME = '{FAR}', ADDRESS = 'tcp://far:4022';"
ASK = f"CREATE ROUTE ask WITH SERVICE_NAME = '{BROKER_CONFIGURATION}', ADDRESS = 'tcp://directory:4022';"
GUID = UUID(int=9)

Plan = Callable[..., Awaitable[PlanAnswer]]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    executor = ThreadPoolExecutor(1)
    yield executor
    executor.shutdown()


@pytest.fixture
async def plan(instance: Instance, executor: ThreadPoolExecutor) -> Plan:
    """Plans a script for the database orders, which has the service NEAR and a route to FAR."""
    await run(instance, f"CREATE QUEUE Q; CREATE SERVICE [{NEAR}] ON QUEUE Q; {TO_FAR}")

    async def planning(script: str, *, database: str = "orders", **told: bool) -> PlanAnswer:
        request = PlanRequest(script, source="new.sql", **told)  # type: ignore[arg-type]  # flags only
        return await plan_script(instance, request, database=database, executor=executor)

    return planning


async def run(instance: Instance, script: str, database: str = "orders") -> None:
    await execute(instance.catalog, parse_script(script), database=database)


def write(instance: Instance, statement: str, *values: object, database: str = "orders") -> None:
    """Change the file of a database behind the back of the instance."""
    path = instance.catalog.databases[database].path
    assert path is not None
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def under_way(instance: Instance) -> list[Any]:
    """The conversations of the database, whichever end is here."""
    with closing(sqlite3.connect(instance.endpoints["orders"].path)) as db:
        return db.execute("SELECT conversation_handle FROM broker_conversation WHERE state <> 'CD'").fetchall()


def begin(instance: Instance, to_service: str = FAR, *, messages: int = 1, far: UUID | None = None) -> broker.Dialog:
    with closing(sqlite3.connect(instance.endpoints["orders"].path)) as db, db:
        dialog = broker.begin_dialog(db, from_service=NEAR, to_service=to_service, broker_instance=far)
        for _ in range(messages):
            dialog.send(b"x")
        return dialog


class Nobody:
    """An origin of frames that wants no advice."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Let it be."""


def arrive(instance: Instance, to_service: str, **fields: Any) -> None:
    """A frame as a peer sends it."""
    header: dict[str, Any] = {
        "kind": 0x10,
        "flags": 0,
        "message_id": bytes(15) + b"\1",
        "conversation_id": bytes(15) + b"\2",
        "to_service": to_service,
        "from_service": "//elsewhere",
        "from_broker_instance": bytes(15) + b"\3",
    }
    frame = encode_dialog(Header(**header | fields), b"body")
    forwarder = instance.forwarder
    forwarder.slab[: len(frame)] = frame
    forwarder.forward(forwarder.slab, len(frame), asyncio.get_running_loop().time(), Nobody())


# --- nothing is changed ---


async def test_nothing_is_changed(plan: Plan, instance: Instance) -> None:
    begin(instance, messages=0)  # nothing is dialled, which would be a change too
    generation, tables = instance.forwarder.generation, instance.catalog.tables()

    await plan(f"DROP ROUTE far; CREATE QUEUE New; DROP SERVICE [{NEAR}]; USE msdb; {TO_FAR}", arrivals=True)

    rows = instance.catalog.databases["orders"].rows
    assert (["Q"], [NEAR]) == (list(rows.queues), list(rows.services))
    assert [list(table) for table in tables.values()] == [list(table) for table in instance.catalog.tables().values()]
    assert generation == instance.forwarder.generation


async def test_a_script_that_would_be_refused_is_refused(plan: Plan) -> None:
    with pytest.raises(UnknownNameError, match=r"new\.sql:1:30"):
        await plan("CREATE QUEUE New; DROP ROUTE nix")


# --- routes ---


async def test_routes_are_told_as_they_are_and_as_they_would_be(plan: Plan) -> None:
    answer = await plan(
        "ALTER ROUTE far WITH ADDRESS = 'tcp://other:1', WEIGHT = 3;"
        f"CREATE ROUTE one WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{GUID}', ADDRESS = 'tcp://one',"
        " MIRROR_ADDRESS = 'tcp://two', LIFETIME = 60;"
        "USE msdb; DROP ROUTE AutoCreatedLocal"
    )

    far, one, local = answer.edits
    assert [("orders", "far"), ("orders", "one"), (MSDB, "AutoCreatedLocal")] == [
        (edit.database, edit.name) for edit in answer.edits
    ]
    assert far.before is not None
    assert far.after is not None
    assert one.after is not None
    assert ("tcp://far:4022", 1, "tcp://other:1", 3) == (
        far.before.address,
        far.before.weight,
        far.after.address,
        far.after.weight,
    )
    assert ("S", str(GUID), "tcp://one", "tcp://two") == (
        one.after.remote_service_name,
        one.after.broker_instance,
        one.after.address,
        one.after.mirror_address,
    )
    assert one.after.lifetime is not None
    assert (None, None, 0) == (one.before, local.after, answer.more_edits)


async def test_what_a_script_undoes_itself_is_no_change(plan: Plan) -> None:
    assert [] == (await plan("CREATE ROUTE r WITH ADDRESS = 'tcp://r'; DROP ROUTE r")).edits


async def test_a_long_list_of_routes_is_cut_and_the_rest_counted(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDITS_MAX", 2)

    answer = await plan("".join(f"CREATE ROUTE r{n} WITH ADDRESS = 'tcp://r';" for n in range(5)))

    assert (["r0", "r1"], 3) == ([edit.name for edit in answer.edits], answer.more_edits)


async def test_too_many_routes_to_list_still_decide(
    plan: Plan, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effect, "CHANGES_MAX", 1)
    begin(instance)

    answer = await plan("CREATE ROUTE r WITH ADDRESS = 'tcp://r'; DROP ROUTE far")

    assert ([], None, True) == (answer.edits, answer.more_edits, answer.more_arrivals)
    assert {Fate.MOVES: 1} == answer.fates


# --- conversations ---


async def test_a_conversation_is_told_with_its_handle_and_both_decisions(plan: Plan, instance: Instance) -> None:
    dialog = begin(instance)

    answer = await plan("ALTER ROUTE far WITH ADDRESS = 'tcp://other:1'")

    [one] = answer.consequences
    assert ("orders", str(dialog.conversation_handle), FAR, Fate.MOVES, True) == (
        one.database,
        one.conversation,
        one.to_service,
        one.fate,
        one.is_harm,
    )
    assert "forwarded to tcp://far:4022 by route far" == one.before
    assert "forwarded to tcp://other:1 by route far" == one.after
    assert ({Fate.MOVES: 1}, 1, 0) == (answer.fates, answer.harmed, answer.passing)


async def test_several_addresses_are_told_up_to_a_bound(
    plan: Plan, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OTHERS_MAX", 1)
    begin(instance)
    more = "".join(f"CREATE ROUTE r{n} WITH SERVICE_NAME = '{FAR}', ADDRESS = 'tcp://far{n}';" for n in range(2))

    [one] = (await plan(more)).consequences

    head, others = one.after.split("; otherwise to ")
    assert head.startswith("forwarded to tcp://far")
    assert others.startswith("tcp://far")
    assert others.endswith(" and 1 more")


@pytest.mark.parametrize(("messages", "harmed"), [(0, 0), (1, 1)])
async def test_a_conversation_that_has_sent_nothing_is_not_harmed(
    plan: Plan, instance: Instance, messages: int, harmed: int
) -> None:
    begin(instance, messages=messages)

    answer = await plan("DROP ROUTE far")

    assert ({Fate.LOSES: 1}, harmed) == (answer.fates, answer.harmed)


async def test_conversations_are_told_up_to_a_bound_and_all_counted(
    plan: Plan, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONSEQUENCES_MAX", 1)
    for messages in (0, 0, 1, 1):
        begin(instance, messages=messages)

    answer = await plan("DROP ROUTE far")

    assert ([True, False], {Fate.LOSES: 4}, 2) == (
        [one.is_harm for one in answer.consequences],
        answer.fates,
        answer.harmed,
    )


async def test_what_keeps_its_target_is_only_counted(plan: Plan, instance: Instance) -> None:
    begin(instance)

    answer = await plan("CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://r'")

    assert ({Fate.KEEPS: 1}, [], 0) == (answer.fates, answer.consequences, answer.harmed)


async def test_a_service_that_goes_takes_its_conversations_with_it(plan: Plan, instance: Instance) -> None:
    """At both ends: what is for it has no route, and what comes back for it ends the dialog."""
    begin(instance, NEAR)
    begin(instance, FAR)
    await until(lambda: 3 == len(under_way(instance)))  # NEAR is here: both ends of the first one

    answer = await plan(f"DROP SERVICE [{NEAR}]")

    assert {Fate.FAILS: 3} == answer.fates
    assert 3 == answer.harmed
    assert {f"the service '{NEAR}' is gone from here: a message that arrives for it ends the dialog with -8470"} == {
        one.after for one in answer.consequences
    }


async def test_a_service_that_comes_is_a_target(plan: Plan, instance: Instance) -> None:
    begin(instance, "//new")

    answer = await plan("CREATE SERVICE [//new] ON QUEUE Q")

    assert {Fate.FINDS: 1} == answer.fates
    assert "delivered here, to the database orders by route AutoCreatedLocal" == answer.consequences[0].after


async def test_a_route_whose_lifetime_ended_counts_again_when_it_is_altered(plan: Plan, instance: Instance) -> None:
    begin(instance)
    write(instance, "UPDATE broker_route SET lifetime = 1 WHERE name = 'far'")
    await instance.catalog.load()

    dropped = await plan("DROP ROUTE far")
    revived = await plan("ALTER ROUTE far WITH LIFETIME = 600")

    assert {Fate.STAYS_LOST: 1} == dropped.fates
    assert {Fate.FINDS: 1} == revived.fates


async def test_a_route_to_this_very_instance_goes_on_by_msdb(plan: Plan, instance: Instance) -> None:
    own = f"tcp://127.0.0.1:{instance.listeners[0].port}"
    await run(instance, f"ALTER ROUTE far WITH ADDRESS = '{own}'")
    await run(instance, TO_FAR, MSDB)
    begin(instance)

    answer = await plan("ALTER ROUTE far WITH ADDRESS = 'tcp://other:1'", database=MSDB)

    assert "forwarded to tcp://far:4022 by route far" == answer.consequences[0].before
    assert {Fate.MOVES: 1} == answer.fates


async def test_an_address_that_failed_comes_behind_others(plan: Plan, instance: Instance) -> None:
    await run(instance, f"CREATE ROUTE dead WITH SERVICE_NAME = '{FAR}', ADDRESS = 'tcp://127.0.0.1:1'")
    begin(instance, messages=0)
    address = next(route.address for route in instance.catalog.databases["orders"].table if route.name == "dead")
    instance.peers.request_link(address)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        while not instance.peers.table.problem_of(address):  # type: ignore[arg-type]  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    [one] = (await plan(f"CREATE ROUTE more WITH SERVICE_NAME = '{FAR}', ADDRESS = 'tcp://more'")).consequences

    assert one.before.startswith("forwarded to tcp://far:4022")
    assert one.after.endswith("tcp://127.0.0.1:1")


# --- what passes through ---


async def test_what_passes_through_counts_by_where_it_goes(plan: Plan, instance: Instance) -> None:
    await run(instance, TO_FAR, MSDB)
    for number in range(3):
        arrive(instance, FAR, conversation_id=number.to_bytes(16, "big"))

    answer = await plan("DROP ROUTE far", database=MSDB)

    assert ({Fate.LOSES: 1}, 1, 1) == (answer.fates, answer.harmed, answer.passing)
    [one] = answer.consequences
    assert (None, None, FAR) == (one.database, one.conversation, one.to_service)
    assert one.after.startswith("dropped by route AutoCreatedLocal: service not here (9796)")


async def test_what_passes_through_by_its_conversation_is_told_with_its_id(plan: Plan, instance: Instance) -> None:
    await run(instance, f"{TO_FAR} CREATE ROUTE two WITH SERVICE_NAME = '{FAR}', ADDRESS = 'tcp://two'", MSDB)
    arrive(instance, FAR, conversation_id=GUID.bytes)

    answer = await plan("DROP ROUTE far; DROP ROUTE two", database=MSDB)

    assert [str(GUID)] == [one.conversation for one in answer.consequences]


async def test_a_service_that_goes_is_lost_for_what_arrives(plan: Plan, instance: Instance) -> None:
    arrive(instance, NEAR)

    answer = await plan(f"DROP SERVICE [{NEAR}]")

    assert Fate.LOSES in answer.fates


# --- databases that ask for routes ---


async def test_a_database_that_would_ask_for_routes_has_none_until_it_is_answered(
    plan: Plan, instance: Instance
) -> None:
    begin(instance, "//elsewhere")
    await run(instance, "CREATE ROUTE rest WITH ADDRESS = 'tcp://rest'")

    answer = await plan(ASK)

    assert {Fate.LOSES: 1} == answer.fates
    assert "asking for route (9770)" in answer.consequences[0].after


@pytest.mark.parametrize("database", ["orders", MSDB])
async def test_requests_for_routes_are_conversations_like_others(plan: Plan, instance: Instance, database: str) -> None:
    """Also those of msdb, by msdb's own table; and the service in whose name they are made stays."""
    await run(instance, ASK, database)
    values = (GUID.bytes, GUID.bytes, GUID.bytes, SERVICE_BROKER, BROKER_CONFIGURATION)
    write(
        instance,
        "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
        " state, service_name, far_service, contract, lifetime, create_date, send_sequence)"
        " VALUES (?, ?, 1, ?, 'SO', ?, ?, 'c', 1e12, 0, 1)",
        *values,
        database=database,
    )

    answer = await plan("ALTER ROUTE ask WITH ADDRESS = 'tcp://other:1'", database=database)

    [one] = answer.consequences
    assert (database, Fate.MOVES, "forwarded to tcp://other:1 by route ask") == (one.database, one.fate, one.after)


# --- where messages would go ---


def ways(answer: PlanAnswer) -> list[tuple[str, str | None, bool]]:
    """Service, next hop, and whether it comes from outside, of every arrival."""
    return [
        (one.explanation.to_service, one.explanation.next_hop, one.explanation.passes[0].is_incoming)
        for one in answer.arrivals
    ]


async def test_each_service_of_a_changed_route_is_followed_once(plan: Plan) -> None:
    answer = await plan(
        "CREATE ROUTE a WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://a:1';"
        "CREATE ROUTE b WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://a:1';"
        f"ALTER ROUTE far WITH SERVICE_NAME = 'B'; USE msdb; {TO_FAR} CREATE ROUTE r WITH ADDRESS = 'tcp://r'",
        arrivals=True,
    )

    assert [("A", "tcp://a:1", False), (FAR, None, False), ("B", "tcp://far:4022", False)] == ways(answer)[:3]
    assert [(FAR, "tcp://far:4022", True), (ANY_OTHER, "tcp://r:4022", True)] == ways(answer)[3:]
    assert not answer.more_arrivals


async def test_a_route_to_one_database_is_followed_by_what_is_for_it(plan: Plan) -> None:
    answer = await plan(
        f"CREATE ROUTE a WITH SERVICE_NAME = 'A', BROKER_INSTANCE = '{GUID}', ADDRESS = 'tcp://a:1'", arrivals=True
    )

    assert [str(GUID)] == [one.explanation.to_broker_instance for one in answer.arrivals]


async def test_conversations_that_change_are_followed_too(plan: Plan, instance: Instance) -> None:
    """So that a route without a service name, which is about everything, is followed where it matters."""
    dialog = begin(instance, "//elsewhere", far=GUID)
    arrive(instance, "//through", to_broker_instance=bytes(15) + b"\4", flags=Flag.FROM_TARGET)

    answer = await plan(
        "CREATE ROUTE rest WITH ADDRESS = 'tcp://rest:1'; USE msdb; CREATE ROUTE rest WITH ADDRESS = 'tcp://rest:1'",
        arrivals=True,
    )

    followed = {("//through", "tcp://rest:1", True), ("//elsewhere", "tcp://rest:1", False)}
    assert followed | {(ANY_OTHER, "tcp://rest:1", is_incoming) for is_incoming in (True, False)} == set(ways(answer))
    told = {one.explanation.to_service: one.explanation for one in answer.arrivals}
    assert told["//through"].is_from_target
    own = told["//elsewhere"]
    assert (str(GUID), str(dialog.conversation_id)) == (own.to_broker_instance, own.conversation_id)


async def test_services_are_followed_up_to_a_bound(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ARRIVALS_MAX", 1)
    script = "CREATE ROUTE a WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://a';"

    one = await plan(script, arrivals=True)
    two = await plan(f"{script} DROP ROUTE far", arrivals=True)

    assert [(1, False), (1, True)] == [(len(answer.arrivals), answer.more_arrivals) for answer in (one, two)]


# --- what goes wrong ---


async def test_a_file_that_cannot_be_read_is_named(plan: Plan, instance: Instance) -> None:
    instance.endpoints["orders"].path.unlink()

    with pytest.raises(
        StoreUnavailableError, match=r"orders\.db: the file cannot be opened: it has to be a plain file"
    ):
        await plan("DROP ROUTE far")


async def test_a_plan_that_nobody_waits_for_ends(
    instance: Instance, plan: Plan, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many conversations there are."""
    reading, is_over = threading.Event(), threading.Event()

    def endless(_: sqlite3.Connection, instance: bytes) -> Iterator[PlannedFlow]:
        while not is_over.is_set():
            yield PlannedFlow("", RoutingFacts(FAR, bytes(16), GUID.bytes, database=instance), has_sent=True)
            reading.set()

    monkeypatch.setattr(module, "flows_of_database", endless)

    planning = asyncio.ensure_future(plan("DROP ROUTE far"))
    await asyncio.to_thread(reading.wait)
    planning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await planning

    ended = executor.submit(is_over.is_set)  # behind the plan
    try:
        assert not await asyncio.to_thread(ended.result, 20)
    finally:
        is_over.set()


# --- test_flows ---
# Which conversations count as under way, and what is known of each.


HOME, FAR_of_flows = UUID(int=1), UUID(int=7)
NOBODY = hosted({})


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    db = open_store(":memory:", broker_instance=HOME)
    put_queue(db, "Q", is_receive_enabled=True)
    put_service(db, "//near", 1, frozenset())
    yield db
    db.close()


def begin_of_flows(db: sqlite3.Connection, *, messages: int = 0, far: UUID | None = None) -> UUID:
    dialog = begin_dialog(db, from_service="//near", to_service="//far", broker_instance=far)
    for _ in range(messages):
        dialog.send(b"x")
    return dialog.conversation_handle


def read(db: sqlite3.Connection) -> list[PlannedFlow]:
    return list(flows_of_database(db, broker_instance(db)))


def test_a_dialog_is_known_by_its_handle_and_sends_from_its_database(db: sqlite3.Connection) -> None:
    handle = begin_of_flows(db, messages=1, far=FAR_of_flows)

    [flow] = read(db)

    (conversation,) = db.execute("SELECT conversation_id FROM broker_conversation").fetchone()
    facts = RoutingFacts("//far", FAR_of_flows.bytes, conversation, is_from_target=False, database=HOME.bytes)
    assert PlannedFlow(str(handle), facts, has_sent=True, from_service="//near") == flow


def test_a_dialog_that_names_nobody_is_open(db: sqlite3.Connection) -> None:
    begin_of_flows(db)

    assert read(db)[0].facts.is_open


@pytest.mark.parametrize(("messages", "has_sent"), [(0, False), (1, True), (3, True)])
def test_an_initiator_is_known_to_the_far_side_once_it_has_sent(
    db: sqlite3.Connection, messages: int, *, has_sent: bool
) -> None:
    begin_of_flows(db, messages=messages)

    assert has_sent == read(db)[0].has_sent


def test_a_target_sends_acknowledgements_from_the_beginning(db: sqlite3.Connection) -> None:
    begin_of_flows(db)
    db.execute("UPDATE broker_conversation SET is_initiator = 0, far_broker_instance = ?", (FAR_of_flows.bytes,))

    [flow] = read(db)

    assert (True, True, FAR_of_flows.bytes) == (flow.has_sent, flow.facts.is_from_target, flow.facts.to_broker_instance)


@pytest.mark.parametrize("state", list(ConversationState))
def test_what_is_closed_or_failed_is_not_under_way(db: sqlite3.Connection, state: ConversationState) -> None:
    begin_of_flows(db, messages=1)
    db.execute("UPDATE broker_conversation SET state = ?", (state.value,))

    assert (state not in {ConversationState.CLOSED, ConversationState.ERROR}) == bool(read(db))


def test_conversations_come_in_the_order_in_which_they_began(db: sqlite3.Connection) -> None:
    handles = [str(begin_of_flows(db)) for _ in range(5)]

    assert handles == [flow.name for flow in read(db)]


# --- what passes through ---


def test_what_passes_by_its_service_alone_has_no_name_and_one_of_several_its_id() -> None:
    conversation = uuid4()
    passed = [RoutingFacts("//far", NO_GUID, NO_GUID), RoutingFacts("//far", FAR_of_flows.bytes, conversation.bytes)]

    flows = list(flows_of_passage(passed, NOBODY))

    assert [
        PlannedFlow("", passed[0], has_sent=True),
        PlannedFlow(str(conversation), passed[1], has_sent=True),
    ] == flows


@pytest.mark.parametrize(
    ("facts", "is_there"),
    [
        (RoutingFacts("//near", HOME.bytes, NO_GUID, is_from_target=True), False),
        (RoutingFacts("//near", HOME.bytes, NO_GUID), True),
        (RoutingFacts("//near", FAR_of_flows.bytes, NO_GUID, is_from_target=True), True),
    ],
)
def test_replies_to_databases_here_need_no_route(facts: RoutingFacts, *, is_there: bool) -> None:
    assert is_there == bool(list(flows_of_passage([facts], hosted({HOME.bytes: ["//near"]}))))
