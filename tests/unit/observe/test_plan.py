"""A plan of a running instance: what is compared, what is reported, and that nothing is changed."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace as Named
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

import broker
from broker.catalog import handlers as effect
from broker.catalog.catalog import MSDB
from broker.catalog.execute import execute
from broker.daemon.instance import Instance
from broker.ddl.parser import parse_script
from broker.errors import UnknownNameError
from broker.observe import plan as module
from broker.observe.plan import (
    ANY_OTHER,
    Consequence,
    PlanAnswer,
    PlannedRoute,
    PlanRequest,
    flows_of_passage,
    plan_script,
)
from broker.protocol.layout import NO_GUID, Flag, show_guid
from broker.routing.decide import RoutingFacts, hosted
from broker.routing.plan import Fate, PlannedFlow
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.security.principal import NOBODY, Who, who_is
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

    async def planning(script: str, *, database: str = "orders", **flags: bool) -> PlanAnswer:
        request = PlanRequest(script, source="new.sql", **flags)  # type: ignore[arg-type]  # flags only
        return await plan_script(instance, request, database=database, executor=executor)

    return planning


@pytest.fixture
def connect(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a link with HELLO in place for each principal."""

    def connecting(*peers: Who) -> None:
        links = [Named(permit=Named(who=who), agreement=object()) for who in peers]
        in_handshake = Named(permit=Named(who=NOBODY), agreement=None)
        monkeypatch.setattr(instance.peers, "links", dict(enumerate([in_handshake, *links])))

    return connecting


async def run(instance: Instance, script: str, database: str = "orders") -> None:
    await execute(instance.catalog, parse_script(script), database=database)


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

    edits = [(edit.database, edit.name, edit.before, edit.after) for edit in answer.edits]
    (_, _, _, one), (database, name, *local) = edits[1], edits[2]
    assert one is not None
    assert one.lifetime is not None
    before = PlannedRoute(FAR, None, "tcp://far:4022", None, 1, None)
    assert edits[:2] == [
        ("orders", "far", before, replace(before, address="tcp://other:1", weight=3)),
        ("orders", "one", None, PlannedRoute("S", str(GUID), "tcp://one", "tcp://two", 1, one.lifetime)),
    ]
    assert (MSDB, "AutoCreatedLocal", None, 0) == (database, name, local[1], answer.more_edits)


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

    answer = await plan("ALTER ROUTE far WITH ADDRESS = 'tcp://other:1', LIFETIME = 60")

    [one] = answer.consequences
    assert answer.expired is not None
    assert {Fate.LOSES: 1} == answer.expired.fates
    before, after = "forwarded to tcp://far:4022 by route far", "forwarded to tcp://other:1 by route far"
    assert Consequence("orders", show_guid(dialog.conversation_handle), FAR, Fate.MOVES, True, before, after) == one
    assert ({Fate.MOVES: 1}, 1, 0) == (answer.fates, answer.harmed, answer.passing)


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


# --- what passes through ---


async def test_what_passes_through_counts_by_where_it_goes(plan: Plan, instance: Instance, take: Any) -> None:
    await run(instance, TO_FAR, MSDB)
    for number in range(3):
        take(instance, to_service=FAR, conversation_id=number.to_bytes(16, "big"))

    answer = await plan("DROP ROUTE far", database=MSDB)

    assert ({Fate.LOSES: 1}, 1, 1) == (answer.fates, answer.harmed, answer.passing)
    [one] = answer.consequences
    assert (None, None, FAR) == (one.database, one.conversation, one.to_service)
    assert one.after.startswith("dropped by route AutoCreatedLocal: service not here (9796)")


# --- permissions ---


@pytest.mark.parametrize(
    ("script", "refused"),
    [
        ("GRANT SEND ON SERVICE::[//other] TO [CN=a]", [f"public could no longer send to {NEAR}: no GRANT SEND"]),
        (f"DENY SEND ON SERVICE::[{NEAR}] TO [public]", [f"public could no longer send to {NEAR}: DENY SEND"]),
        ("DENY CONNECT ON ENDPOINT::[*] TO [public]", ["public could no longer connect: DENY CONNECT"]),
        ("GRANT SEND ON SERVICE::[//*] TO [public]", []),
        ("DROP ROUTE AutoCreatedLocal", None),
    ],
)
async def test_a_permission_that_conversations_need_is_missed(
    plan: Plan, instance: Instance, connect: Callable[..., None], script: str, refused: list[str] | None
) -> None:
    connect(NOBODY)
    begin(instance)

    told = (await plan(script, database=MSDB)).refused

    assert refused == (told and [one[: len(begins)] for one, begins in zip(told, refused or (), strict=True)])


async def test_peers_that_prove_who_they_are_lose_what_is_theirs(
    plan: Plan, instance: Instance, take: Any, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(instance, "GRANT SEND ON SERVICE::[//*] TO [public]; GRANT SEND ON SERVICE::[//*] TO [CN=a]", MSDB)
    take(instance, to_service=FAR)
    settings = instance.settings
    monkeypatch.setattr(
        instance, "settings", replace(settings, endpoint=replace(settings.endpoint, authentication="certificate"))
    )
    connect()
    revoke = "REVOKE SEND ON SERVICE::[//*] FROM [public]"
    alone = await plan(revoke, database=MSDB)
    connect(*map(who_is, ("CN=a", "CN=b", "CN=c")))

    answer = await plan(revoke, database=MSDB)

    missing = ", ".join(f"no GRANT SEND ON SERVICE::[{one}] TO [CN=b] or public" for one in ("//*", FAR))
    assert [f"CN=b, CN=c could no longer send to //*, {FAR}: {missing}"] == answer.refused
    assert [] == alone.refused


async def test_a_grant_that_is_taken_away_is_missed_before_there_is_any_traffic(plan: Plan, instance: Instance) -> None:
    await run(instance, "GRANT CONNECT ON ENDPOINT::[*] TO [public]; GRANT CONNECT ON ENDPOINT::[*] TO [CN=a]", MSDB)
    await run(instance, "".join(f"GRANT SEND ON SERVICE::[//{one}] TO [public];" for one in "abc"), MSDB)
    sends = "".join(f"REVOKE SEND ON SERVICE::[//{one}] FROM [public];" for one in "ab")
    connects = "REVOKE CONNECT ON ENDPOINT::[*] FROM [public]"

    send, connect = [(await plan(one, database=MSDB)).refused for one in (sends, connects)]

    assert ["public could no longer send to //a, //b"] == [one.partition(":")[0] for one in send or ()]
    assert ["public could no longer connect"] == [one.partition(":")[0] for one in connect or ()]


async def test_what_is_refused_is_told_by_its_reason(
    plan: Plan, instance: Instance, take: Any, connect: Callable[..., None]
) -> None:
    connect(NOBODY)
    for service in ("//a", "//b", "//c"):
        take(instance, to_service=service)

    answer = await plan("DENY SEND ON SERVICE::[//b] TO [public]", database=MSDB)

    missing = ", ".join(f"no GRANT SEND ON SERVICE::[{one}] TO [public]" for one in ("//a", "//c"))
    assert [
        f"public could no longer send to //a, //c: {missing}",
        "public could no longer send to //b: DENY SEND ON SERVICE::[//b] TO [public]",
    ] == answer.refused


async def test_conversations_with_a_service_that_is_here_need_no_peer(
    plan: Plan, instance: Instance, connect: Callable[..., None]
) -> None:
    """Also before an answer has named the broker instance."""
    connect(NOBODY)
    await run(instance, "ALTER QUEUE Q WITH STATUS = OFF")
    begin(instance, NEAR)

    answer = await plan(f"DENY SEND ON SERVICE::[{NEAR}] TO [public]", database=MSDB)

    assert (1, []) == (sum(answer.fates.values()), answer.refused)


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
    statement = (
        "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
        " state, service_name, far_service, contract, lifetime, create_date, send_sequence)"
        " VALUES (?1, ?1, 1, ?1, 'SO', ?2, ?3, 'c', 1e12, 0, 1)"
    )
    with closing(sqlite3.connect(str(instance.catalog.databases[database].path))) as db, db:
        db.execute(statement, (GUID.bytes, SERVICE_BROKER, BROKER_CONFIGURATION))

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
    one = f"CREATE ROUTE a WITH SERVICE_NAME = 'A', BROKER_INSTANCE = '{GUID}', ADDRESS = 'tcp://a:1'"
    answer = await plan(
        "CREATE ROUTE a WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://a:1';"
        "CREATE ROUTE b WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://a:1';"
        f"ALTER ROUTE far WITH SERVICE_NAME = 'B'; USE msdb; {TO_FAR} CREATE ROUTE r WITH ADDRESS = 'tcp://r'",
        arrivals=True,
    )

    assert [("A", "tcp://a:1", False), (FAR, None, False), ("B", "tcp://far:4022", False)] == ways(answer)[:3]
    assert [(FAR, "tcp://far:4022", True), (ANY_OTHER, "tcp://r:4022", True)] == ways(answer)[3:]
    assert not answer.more_arrivals
    to_one = await plan(one, arrivals=True)
    assert [str(GUID)] == [one.explanation.to_broker_instance for one in to_one.arrivals]


async def test_conversations_that_change_are_followed_too(plan: Plan, instance: Instance, take: Any) -> None:
    """So that a route without a service name, which is about everything, is followed where it matters."""
    dialog = begin(instance, "//elsewhere", far=GUID)
    take(instance, to_service="//through", to_broker_instance=bytes(15) + b"\4", flags=Flag.FROM_TARGET)

    answer = await plan(
        "CREATE ROUTE rest WITH ADDRESS = 'tcp://rest:1'; USE msdb; CREATE ROUTE rest WITH ADDRESS = 'tcp://rest:1'",
        arrivals=True,
    )

    followed = {("//through", "tcp://rest:1", True), ("//elsewhere", "tcp://rest:1", False)}
    assert followed | {(ANY_OTHER, "tcp://rest:1", is_incoming) for is_incoming in (True, False)} == set(ways(answer))
    told = {one.explanation.to_service: one.explanation for one in answer.arrivals}
    assert told["//through"].is_from_target
    own = told["//elsewhere"]
    assert (show_guid(GUID), show_guid(dialog.conversation_id)) == (own.to_broker_instance, own.conversation_id)


# --- bounds ---


async def test_lists_are_cut_and_the_rest_counted(
    plan: Plan, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EDITS_MAX", "CONSEQUENCES_MAX", "ARRIVALS_MAX", "OTHERS_MAX"):
        monkeypatch.setattr(module, name, 1)
    for messages in (0, 0, 1, 1):
        begin(instance, messages=messages)
    three = "".join(f"CREATE ROUTE r{n} WITH SERVICE_NAME = '{FAR}', ADDRESS = 'tcp://far{n}';" for n in range(3))

    answer = await plan("DROP ROUTE far; CREATE ROUTE s WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://s'", arrivals=True)
    several = await plan(f"{three} DROP ROUTE far", arrivals=True)

    assert [(1, 1), (1, 3)] == [(len(one.edits), one.more_edits) for one in (answer, several)]
    assert ([True, False], 2) == ([one.is_harm for one in answer.consequences], answer.harmed)
    assert {Fate.LOSES: 4} == answer.fates
    assert [(1, True), (1, False)] == [(len(one.arrivals), one.more_arrivals) for one in (answer, several)]
    assert re.fullmatch(r"forwarded to \S+ by route \S+; otherwise to \S+ and 1 more", several.consequences[0].after)


# --- what goes wrong ---


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

    ended = executor.submit(is_over.is_set)  # after the plan
    try:
        assert not await asyncio.to_thread(ended.result, 20)
    finally:
        is_over.set()


# --- conversations under way: which there are is the store's, what is known of each is here ---


def test_what_passes_is_a_flow_unless_it_is_a_reply_to_a_database_here() -> None:
    conversation, home = uuid4(), UUID(int=1).bytes
    passed = [
        RoutingFacts("//far", NO_GUID, NO_GUID),
        RoutingFacts("//far", GUID.bytes, conversation.bytes),
        RoutingFacts("//near", home, NO_GUID, is_from_target=True),
        RoutingFacts("//near", home, NO_GUID),
        RoutingFacts("//near", GUID.bytes, NO_GUID, is_from_target=True),
    ]

    flows = list(flows_of_passage(passed, hosted({home: ["//near"]})))

    assert [("", passed[0]), (show_guid(conversation), passed[1]), ("", passed[3]), ("", passed[4])] == [
        (flow.name, flow.facts) for flow in flows
    ]
    assert all(flow.has_sent for flow in flows)
