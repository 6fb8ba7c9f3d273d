"""A snapshot says what the instance does, with sentences for people where frames wait."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, get_args
from uuid import UUID

import pytest

from broker.catalog.catalog import ScriptProgress, ScriptStage
from broker.catalog.execute import execute
from broker.config.settings import AdminSettings
from broker.ddl.parser import parse_script
from broker.flow import Disposition
from broker.net.handshake import REFUSED_MAX
from broker.net.quotas import Permit
from broker.net.tls import NO_SECURITY, Encryption, Identity, Security
from broker.observe import snapshot as module
from broker.observe.drops import (
    DEFINITIONS_CHANGED,
    DropSnapshot,
    FrameFields,
    dropped_by_reason,
    frame_fields,
    remedy_of_drop,
)
from broker.observe.health import TEXT_MAX
from broker.observe.message_catalogue import statement_of
from broker.observe.snapshot import (
    REFUSED_SECONDS,
    WARNINGS_MAX,
    RouteFrames,
    Snapshot,
    SnapshotSection,
    certificates_in_use,
    expiry_warnings,
    read_snapshot,
    read_snapshot_in_steps,
)
from broker.observe.status import CertificateStatus, JournalStatus, ScriptStatus, TransportWarning, WarningKind
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import HEAD_MAX_BYTES, Flag, FrameKind, show_guid
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair
from broker.security.principal import who_is
from broker.security.session import SIGNER_UNKNOWN
from tests.support.identities import credentials
from tests.unit.observe.conftest import DEAD

FAR = NetworkAddress("127.0.0.1", 1)
ROUTE = f"CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'"
PAIR_ROUTE = (
    "CREATE ROUTE pair WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '00000000-0000-0000-0000-000000000001',"
    " ADDRESS = 'tcp://127.0.0.1:1', MIRROR_ADDRESS = 'tcp://127.0.0.1:2'"
)
HEADER = Header(FrameKind.MESSAGE, 0, b"m" * 16, b"c" * 16, "//far", "//near", b"f" * 16, sequence_number=5)


EVERY: tuple[SnapshotSection, ...] = get_args(SnapshotSection)


def read(instance: Any, *sections: SnapshotSection) -> Snapshot:
    return read_snapshot(instance, sections)


async def run(instance: Any, script: str) -> None:
    await execute(instance.catalog, parse_script(script), database=instance.name)


def dropped(instance: Any) -> tuple[DropSnapshot, ...]:
    return read(instance, "drops").drops


def drop_frame(instance: Any, disposition: Disposition, *, missing: str = "", **fields: Any) -> None:
    """Drops a frame of a peer, or without hops one of its own; `missing` is the GRANT for want of which."""
    if missing:
        instance.peers.permissions.refusals["CN=a", ""] = (0.0, f"CN=a may not send: no {missing}")
    instance.forwarder.drop(encode_dialog(replace(HEADER, **{"hop_count": 1} | fields), b""), disposition, None)


def drop_message(instance: Any, disposition: Disposition, reason: str = "", **fields: Any) -> Any:
    """A database drops one; its endpoint."""
    endpoint = instance.endpoints[instance.name]
    endpoint.dropped[disposition] = 1
    endpoint.last_dropped[disposition] = (3.0, replace(HEADER, **fields), reason)
    return endpoint


@pytest.fixture
async def gateway(start: Any) -> Any:
    return await start("gateway", msdb=ROUTE)


# --- reading ---


async def test_an_address_that_frames_wait_for_is_known_as_one_to_which_no_route_leads(gateway: Any, take: Any) -> None:
    take(gateway)
    named = [one.is_named for address, one in read(gateway, "addresses").addresses if address == DEAD]
    gateway.peers.dialer.on_routes(())
    gone = [(one.is_named, one.held) for address, one in read(gateway, "addresses").addresses if address == DEAD]

    assert ([True], [(False, 1)]) == (named, gone)


async def test_every_section_can_be_read_in_steps_and_says_the_same(
    gateway: Any, take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(gateway)
    monkeypatch.setattr(module, "STEP_SECONDS", 0.0)

    stepped = await read_snapshot_in_steps(gateway, EVERY)
    part = read(gateway, "held")

    assert (1, (), ()) == (len(part.held), part.next_hops, part.links)
    assert timedelta(seconds=-5) == part.utc(part.loop_time - 5) - part.taken_at
    at_once = read_snapshot(gateway, EVERY)
    for section in ("forwarding", "links", "drops", "databases", "roles", "transport"):
        assert getattr(stepped, section) == getattr(at_once, section)
    assert stepped.next_hops[0].next_hop == at_once.next_hops[0].next_hop == DEAD


@pytest.mark.promise("A metric has the label value other")
async def test_ten_thousand_routes_are_read_in_many_iterations_as_of_one_moment(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await start("near")
    ways = instance.forwarder.table
    outbox, turns = ways.outbox(NetworkAddress("far")), 0

    def carry(route: str) -> None:
        ways.entry_to(outbox, Disposition.FORWARDED, route, 0x10).frames = 1

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            carry(f"later{turns}")
            await asyncio.sleep(0)

    for number in range(10_000):
        carry(f"r{number}")
    monkeypatch.setattr(module, "STEP_SECONDS", 0.0)
    task = asyncio.create_task(others())

    snapshot = await read_snapshot_in_steps(instance, ["by_route"])

    task.cancel()
    assert turns >= 10_000 // module.STEP_VALUES
    assert {RouteFrames(f"r{number}", "tcp://far:4022", 1) for number in range(10_000)} == set(snapshot.by_route)


# --- the run and the databases ---


async def test_scripts_under_way_and_a_journal_whose_writer_has_died_are_in_the_run(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = ScriptProgress("routes.sql", size=100, position=34, statements=7, stage=ScriptStage.RUNNING)
    figures = dict.fromkeys(JournalStatus.__struct_fields__, 0) | {"failures": 2}
    monkeypatch.setattr(gateway, "journal", SimpleNamespace(status=lambda: figures))
    gateway.catalog.scripts.append(progress)

    run = read(gateway, "run").run
    gateway.catalog.scripts.remove(progress)

    assert (ScriptStatus("routes.sql", "running", 100, 34, 7),) == run.scripts
    assert (2, 0) == (run.task_failures["journal"], run.task_failures["gateway requests"])
    assert run.journal is not None


async def test_what_a_database_counted_that_has_gone_stays_counted(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].dropped[Disposition.DUPLICATE] = 3

    instance.databases.refuse("near", None)
    leaving = dropped_by_reason(instance)[Disposition.DUPLICATE], read(instance, "databases").databases
    await instance.databases.close("near")

    assert (3, ()) == leaving
    (drop,) = dropped(instance)
    assert ("duplicate", None, 3, None) == (drop.disposition, drop.database, drop.frames, drop.last_at)
    assert 3 == read(instance, "traffic").traffic.duplicates


# --- what was dropped ---


async def test_drops_are_in_the_order_of_the_reasons_with_the_head_of_the_last_frame(gateway: Any) -> None:
    home = gateway.endpoints["gateway"].broker_instance
    own = {"to_service": "//nowhere", "from_broker_instance": home}
    drop_frame(gateway, Disposition.NO_ROUTE)
    drop_frame(gateway, Disposition.NOT_PERMITTED, missing="GRANT", **own)
    drop_frame(gateway, Disposition.SERVICE_NOT_HERE, hop_count=0, **own)
    drop_frame(gateway, Disposition.INSTANCE_NOT_HERE, to_service="//gateway", to_broker_instance=b"x" * 16)
    drop_message(gateway, Disposition.DUPLICATE, "twice").dropped[Disposition.DUPLICATE] = 4

    found = dropped(gateway)

    assert [
        ("not permitted", None, 1, "CN=a may not send: no GRANT"),
        ("no route", None, 1, ""),
        ("service not here", None, 1, ""),
        ("instance not here", None, 1, ""),
        ("duplicate", "gateway", 4, "twice"),
    ] == [(one.disposition, one.database, one.frames, one.reason) for one in found]
    assert ["//nowhere", "//far", "//nowhere", "//gateway", "//far"] == [one.fields.to_service_name for one in found]
    assert [
        (True, "", True, "", False),
        (False, "", False, "", True),
        (False, "gateway", False, "", True),
        (True, "", False, show_guid(home), False),
        (False, "", False, "", False),
    ] == [(one.leads_nowhere, one.sender, one.is_back, one.other_instance, one.is_past) for one in found]
    assert 3.0 == found[-1].last_at


async def test_msdb_which_no_setting_names_drops_as_other_databases_do(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gateway.endpoints, "msdb", drop_message(gateway, Disposition.MALFORMED))

    assert {gateway.name, "msdb"} == {drop.database for drop in dropped(gateway)}


async def test_of_a_frame_that_was_dropped_the_head_is_kept(gateway: Any) -> None:
    gateway.forwarder.drop(encode_dialog(HEADER, bytes(100_000)), Disposition.NO_ROUTE, None)

    (found,) = dropped(gateway)

    assert isinstance(found.sample, bytes)
    assert HEAD_MAX_BYTES == len(found.sample)


SENDS_X = "GRANT SEND ON SERVICE::[//x] TO [CN=a]"
TO_X = f"USE msdb; CREATE ROUTE r WITH SERVICE_NAME = '//x', ADDRESS = '{DEAD}'"


@pytest.mark.parametrize(
    ("disposition", "script", "is_past"),
    [
        ("not permitted", "USE gateway; CREATE QUEUE More", False),
        ("not permitted", f"USE msdb; {SENDS_X}", True),
        ("not permitted", "USE msdb; GRANT SEND ON SERVICE::[//y] TO [CN=a]", False),
        ("no route", "USE msdb; CREATE ROUTE other WITH SERVICE_NAME = '//y', ADDRESS = 'LOCAL'", False),
        ("no route", TO_X, True),
        ("pool limit exceeded", TO_X, False),
    ],
)
async def test_a_drop_is_past_once_definitions_would_let_the_frame_go_on(
    gateway: Any, disposition: str, script: str, *, is_past: bool
) -> None:
    drop_frame(gateway, Disposition(disposition), missing=f"{SENDS_X} or public", to_service="//x")

    await run(gateway, script)

    assert [is_past] == [one.is_past for one in dropped(gateway)]


async def test_a_frame_that_expired_names_its_next_hop_and_is_past_once_that_takes_frames(gateway: Any) -> None:
    await run(gateway, TO_X)
    drop_frame(gateway, Disposition.EXPIRED_HERE, to_service="//x")
    outbox = gateway.forwarder.table.outbox(FAR)

    (waits,) = dropped(gateway)
    outbox.outlet = SimpleNamespace(can_send=True)
    (takes,) = dropped(gateway)
    outbox.outlet = None

    assert ((DEAD, ""), False, True) == (waits.unreached, waits.is_past, takes.is_past)


@pytest.mark.parametrize(
    ("service", "near"), [("//shop/Biling", ("//shop/Billing",)), ("//shop/Billing", ()), ("//shop/Billing2", ())]
)
async def test_a_misspelt_service_that_a_peer_may_not_send_to_is_asked_about(
    gateway: Any, service: str, near: tuple[str, ...]
) -> None:
    script = f"USE msdb; CREATE ROUTE r WITH SERVICE_NAME = '//shop/Billing', ADDRESS = '{DEAD}'"
    await run(gateway, f"{script}; USE gateway; CREATE QUEUE Q2; CREATE SERVICE [//shop/Billing2] ON QUEUE Q2;")
    missing = f"GRANT SEND ON SERVICE::[{service}] TO [CN=a]"
    drop_frame(gateway, Disposition.NOT_PERMITTED, missing=missing, to_service=service)

    (found,) = dropped(gateway)

    assert near == found.near
    known = "is the name right? Known there: //shop/Billing."
    assert bool(near) == remedy_of_drop(found, "gateway").startswith(known)


async def test_a_misspelt_service_that_a_peer_was_given_is_still_asked_about(gateway: Any) -> None:
    await run(gateway, "USE gateway; CREATE QUEUE Q2; CREATE SERVICE [//shop/Billing] ON QUEUE Q2;")
    missing = "GRANT SEND ON SERVICE::[//shop/Biling] TO [CN=a]"
    drop_frame(gateway, Disposition.NOT_PERMITTED, missing=missing, to_service="//shop/Biling")
    await run(gateway, f"USE msdb; {missing};")
    [given] = dropped(gateway)
    drop_frame(gateway, Disposition.NO_ROUTE, to_service="//shop/Biling")
    over, no_route = dropped(gateway)

    asked = "is the name right? Known there: //shop/Billing."
    would_end = f"that is over, but the next copy would be dropped (no route): {asked}"
    assert remedy_of_drop(given, "gateway").startswith(would_end)
    assert remedy_of_drop(over, "gateway") == DEFINITIONS_CHANGED
    assert remedy_of_drop(no_route, "gateway").startswith(asked)


RUN = "at gateway, with broker sql, and in its script if it has one: USE"
TO_GATEWAY = "GRANT SEND ON SERVICE::[//gateway] TO"
MSDB = "USE msdb; CREATE ROUTE r WITH ADDRESS = 'LOCAL'; GRANT SEND ON SERVICE::[*] TO [CN=z];"


async def test_that_a_database_may_refuse_the_sender_as_well_is_told_with_the_permission_that_a_peer_lacks(
    gateway: Any,
) -> None:
    await run(gateway, MSDB)
    drop_frame(gateway, Disposition.NOT_PERMITTED, missing=f"{TO_GATEWAY} [CN=a]", to_service="//gateway")

    (plain,) = dropped(gateway)
    prove(gateway)
    (proving,) = dropped(gateway)

    statement = f"{RUN} [msdb]; {TO_GATEWAY} [CN=a];"
    why = f"broker why {UUID(bytes=HEADER.conversation_id)} at its sender, with --admin for gateway"
    lacks = "where the database gateway lacks a GRANT for it, too, its dialog fails without that one"
    assert statement == remedy_of_drop(plain, "gateway")
    assert f"first, {why}: {lacks}. Then, {statement}" == remedy_of_drop(proving, "gateway")


def prove(instance: Any) -> None:
    """From now on the database has a certificate."""
    own = instance.settings.databases[instance.name].replace(certificate="own.pem")
    instance.settings = instance.settings.replace(databases={instance.name: own})


async def test_the_sender_that_a_binding_names_has_its_grant_told_with_that_of_the_peer(gateway: Any) -> None:
    prove(gateway)
    await run(gateway, f"CREATE REMOTE SERVICE BINDING b TO SERVICE '//near' WITH USER = [CN=far]; {MSDB}")
    drop_frame(gateway, Disposition.NOT_PERMITTED, missing=f"{TO_GATEWAY} [CN=a]", to_service="//gateway")

    told = []
    for grant in ("", f"USE msdb; {TO_GATEWAY} [CN=a];", f"USE gateway; {TO_GATEWAY} [CN=far];"):
        await run(gateway, grant)
        told += [remedy_of_drop(one, "gateway") for one in dropped(gateway)]

    of_database = f"{RUN} [gateway]; {TO_GATEWAY} [CN=far];"
    over = "that is over, but the dialog fails without another GRANT: "
    with_both = f"{of_database} And {RUN} [msdb]; {TO_GATEWAY} [CN=a];"
    assert [with_both, f"{over}{of_database}", DEFINITIONS_CHANGED] == told


async def test_all_services_that_were_refused_a_moment_ago_and_still_are_have_their_statements(gateway: Any) -> None:
    await run(gateway, f"USE msdb; CREATE ROUTE r WITH ADDRESS = '{DEAD}'; GRANT SEND ON SERVICE::[*] TO [CN=z];")
    permissions, peer = gateway.peers.permissions, who_is("CN=a")
    for service in ("//old", "//one", "//two", "//three"):
        drop_frame(gateway, Disposition.NOT_PERMITTED, to_service=service)
        Permit(peer, permissions.grants.profile(peer), permissions).why_refused(service)
    permissions.refusals["CN=a", "//old"] = (0.0, permissions.refusals["CN=a", "//old"][1])

    told = []
    for name in ("", "//three", "//two", "*"):
        await run(gateway, f"USE msdb; GRANT SEND ON SERVICE::[{name}] TO [CN=a];" if name else "")
        told += [remedy_of_drop(one, "gateway") for one in dropped(gateway)]

    one, two, three = (f"GRANT SEND ON SERVICE::[{name}] TO [CN=a];" for name in ("//one", "//two", "//three"))
    over = "that is over for //three, and others are refused: "
    assert [
        f"{RUN} [msdb]; {three} Then, as others were refused as well, {RUN} [msdb]; {two} {one}",
        f"{over}{RUN} [msdb]; {two} {one}",
        f"{over}{RUN} [msdb]; {one}",
        DEFINITIONS_CHANGED,
    ] == told


def test_the_statements_for_five_services_of_peers_without_names_fit_into_a_finding() -> None:
    names = [f"//shop/deliveries/Area{number}" for number in range(5)]
    reason, *others = (f"no GRANT SEND ON SERVICE::[{name}] TO [public]" for name in names)
    frame = encode_dialog(replace(HEADER, hop_count=1, to_service=names[0]), b"")
    drop = DropSnapshot(Disposition.NOT_PERMITTED, None, 5, 1.0, frame, reason, others=tuple(others))

    remedy = remedy_of_drop(drop, "gateway")

    assert (5, 1) == (remedy.count("GRANT SEND"), remedy.count("if the peer has a certificate"))
    assert len(remedy) <= TEXT_MAX


def test_each_deny_of_several_has_its_own_condition() -> None:
    one, two = (f"DENY SEND ON SERVICE::[{name}] TO [CN=a]" for name in ("//one", "//two"))
    missing = "no GRANT SEND ON SERVICE::[//three] TO [CN=a] or public"

    told = statement_of(one, missing, two, where="gateway").split(" And ")

    starts = "at gateway, with broker sql, ", f"if {one} is not meant, ", f"if {two} is not meant, "
    assert [True] * 3 == [part.startswith(start) for part, start in zip(told, starts, strict=True)]


async def test_a_drop_of_an_own_database_is_past_once_its_route_leads_out_or_its_dialog_has_nothing_to_send(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = await start("orders", forwarding=False)
    endpoint = orders.endpoints["orders"]
    own = {"hop_count": 0, "from_broker_instance": endpoint.broker_instance}
    drop_frame(orders, Disposition.NO_ROUTE, to_service="//x", **own)

    seen = []
    for is_sending, script in ((True, ""), (False, ""), (True, TO_X.replace("msdb", "orders"))):
        monkeypatch.setattr(endpoint.transmitter, "is_sending", lambda *_, is_sending=is_sending, **__: is_sending)
        await run(orders, script)
        seen += [one.is_past for one in dropped(orders)]

    assert [False, True, True] == seen


LACKS = "no GRANT SEND ON SERVICE::[//gateway] TO [public]"
DENIED = "DENY SEND ON SERVICE::[//gateway] TO [public]"
LIFTED = "REVOKE SEND ON SERVICE::[//gateway] FROM [public]"
GRANT_Z = "GRANT SEND ON SERVICE::[//gateway] TO [CN=z]"


@pytest.mark.parametrize(
    ("disposition", "reason", "statements"),
    [
        ("queue disabled", "", {"ALTER QUEUE Q WITH STATUS = OFF": False, "ALTER QUEUE Q WITH STATUS = ON": True}),
        ("not permitted", LACKS, {GRANT_Z: False, "REVOKE SEND ON SERVICE::[//gateway] FROM [CN=z]": True}),
        ("not permitted", DENIED, {DENIED: False, GRANT_Z: False, LIFTED: True}),
    ],
)
async def test_a_drop_by_a_database_is_past_once_its_queue_is_on_or_the_rule_that_refused_it_is_gone(
    gateway: Any, disposition: str, reason: str, statements: dict[str, bool]
) -> None:
    drop_message(gateway, Disposition(disposition), reason, to_service="//gateway")

    seen = []
    for statement in statements:
        await run(gateway, f"{statement};")
        seen += [one.is_past for one in dropped(gateway)]

    assert [*statements.values()] == seen


async def test_a_drop_for_want_of_a_certificate_is_past_once_the_database_knows_it(gateway: Any) -> None:
    here = credentials("gateway", "far")
    [fingerprint] = here.peers.known
    endpoint = drop_message(gateway, Disposition.SECURITY_UNRESOLVED, f"{SIGNER_UNKNOWN}{fingerprint.hex()}")

    before = [one.is_past for one in dropped(gateway)]
    endpoint.transmitter.frames.credentials.peers = here.peers

    assert ([False], [True]) == (before, [one.is_past for one in dropped(gateway)])


@pytest.mark.parametrize("sample", [None, b"", b"\x10" * 20])
def test_a_frame_too_short_for_a_head_says_nothing(sample: bytes | None) -> None:
    assert FrameFields() == DropSnapshot(Disposition.MALFORMED, None, 1, None, sample, "").fields


# --- frames that wait ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"sequence_number": 7, "fragment_number": 2, "hop_limit": 16, "hop_count": 3, "flags": Flag.FROM_TARGET},
            {"message_sequence_number": 7, "message_fragment_number": 2, "hops_remaining": 13, "is_initiator": False},
        ),
        ({"time_to_live": 900}, {"time_to_live": 1}),
        ({"from_broker_instance": bytes(16)}, {"from_broker_instance": None, "to_broker_instance": None}),
    ],
)
def test_a_frame_says_what_its_head_holds(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"kind": 0x10, "flags": 0, "message_id": bytes(16), "conversation_id": bytes(16)}
    usual |= {"to_service": "//far", "from_service": "//near", "from_broker_instance": bytes(15) + b"\3"}

    found = frame_fields(encode_dialog(Header(**usual | fields), b"body"))

    assert expected == {name: getattr(found, name) for name in expected}
    broken = encode_dialog(HEADER, b"").replace(b"//near", b"\xff\xfe//ne")  # forwarding does not read this name
    assert "\ufffd\ufffd//ne" == frame_fields(broken).from_service_name


async def test_held_frames_wait_for_the_connection_or_for_room(gateway: Any, take: Any) -> None:
    take(gateway)
    outbox = gateway.forwarder.table.outboxes[FAR]
    gateway.peers.table.histories[FAR].problem = "Connection refused"

    (unconnected,) = read(gateway, "next_hops").next_hops
    outbox.outlet = SimpleNamespace(can_send=False, is_narrow=False, max_frame=1 << 20)
    (full,) = read(gateway, "next_hops").next_hops
    used = outbox.share.used_bytes
    gateway.forwarder.pool.limit_bytes = 2 * used
    (without_room,) = read(gateway, "held").held

    held = f"; {used} of at most {32 * 1024 * 1024} bytes wait for it"
    assert f"waiting for a connection to {DEAD}: Connection refused{held}" == unconnected.why
    assert f"the connection to {DEAD} accepts nothing at the moment{held}" == full.why
    assert without_room.why.endswith(f"; {used} of at most {used} bytes wait for it, no room for more")
    outbox.outlet = None


async def test_frames_for_a_mirrored_pair_wait_for_its_principal_and_then_for_a_link(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=PAIR_ROUTE)
    take(gateway)
    ((pair, _),) = gateway.forwarder.table.pair_outboxes.items()

    (unasked,) = read(gateway, "held").held
    gateway.forwarder.set_principals({pair: FAR}, 1.0)
    gateway.peers.table.histories[FAR].problem = "Connection refused"
    (known,) = read(gateway, "held").held
    gateway.mirrors.use(pair)
    await asyncio.sleep(0)
    (mirror,) = read(gateway, "mirrors").mirrors

    told = mirror.status
    assert (pair, "pair", "NOT_OPERATIONAL", 1) == (mirror.pair, told.route, told.state, told.held)
    assert unasked.why.startswith("principal unknown (9794): both partners are about to be asked; ")
    assert known.why.startswith(f"waiting for a connection to {FAR}: Connection refused; ")


# --- frames that left, and mirrored routes ---

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
PAIR = MirroredPair("//billing", UUID(int=1), NORTH, SOUTH)


async def test_frames_that_left_are_by_the_principal_of_that_time_as_of_the_first_value(gateway: Any) -> None:
    """Whatever happens while the others are made: a route more, frames more, another principal."""
    forwarder = gateway.forwarder
    ways = forwarder.table
    plain = ways.entry_to(ways.outbox(SOUTH), Disposition.FORWARDED, "plain", 0x10)
    pair = ways.entry_to(ways.pair_outbox(PAIR), Disposition.FORWARDED, "to billing", 0x10)
    forwarder.set_principals({PAIR: NORTH}, 1.0)
    plain.frames, pair.frames = 5, 3
    forwarder.set_principals({PAIR: SOUTH}, 2.0)
    pair.frames, forwarder.retired_frames = 2, 7
    values = module._READ["by_route"](gateway, 0.0)

    first = next(values)
    plain.frames = 6
    ways.entry_to(ways.outbox(NORTH), Disposition.FORWARDED, "later", 0x10).frames = 1

    assert {
        RouteFrames("", None, 7),
        RouteFrames("plain", str(SOUTH), 5),
        RouteFrames("to billing", str(NORTH), 3),
        RouteFrames("to billing", str(SOUTH), 2),
    } == {first, *values}


# --- certificates ---

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def certificate(name: str, days: float = 100.0) -> Identity:
    return Identity(f"CN={name}", f"fingerprint of {name}", (), NOW - DAY, NOW + days * DAY)


OWN, BETWEEN, CA, OTHER, PEER = (certificate(name) for name in ("own", "between", "ca", "other", "peer"))
SECURITY = Security(Encryption.REQUIRED, is_authenticating=True, own=OWN, own_chain=(BETWEEN,), trusted=(CA, OTHER))


def secured(security: Security, *chains: tuple[Identity, ...]) -> Any:
    links = [SimpleNamespace(transport=SimpleNamespace(chain=chain)) for chain in chains]
    return SimpleNamespace(
        peers=SimpleNamespace(handshaker=SimpleNamespace(security=security), links=dict(enumerate(links)))
    )


def test_every_certificate_in_use_is_there_once_for_each_role() -> None:
    found = list(certificates_in_use(secured(SECURITY, (PEER, CA), (PEER, CA), ())))

    roles = ["own", "own_chain", "trust", "trust", "peer", "peer_chain"]
    assert list(zip(roles, (OWN, BETWEEN, CA, OTHER, PEER, CA), strict=True)) == found
    assert [] == list(certificates_in_use(secured(NO_SECURITY, ())))


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (31, []),
        (29.5, [(WarningKind.EXPIRES, "ends in 29 days, at 2026-01-30 12:00 UTC")]),
        (0.5, [(WarningKind.EXPIRES, "ends in 12 hours, at 2026-01-01 12:00 UTC")]),
        (-1, [(WarningKind.EXPIRED, "has expired at 2025-12-31 00:00 UTC")]),
    ],
)
def test_the_end_of_a_certificate_is_a_warning_thirty_days_ahead(days: float, expected: list[Any]) -> None:
    found = list(expiry_warnings([("peer", certificate("peer", days))], NOW))

    assert [TransportWarning(kind, f"the certificate of a peer {text}: CN=peer") for kind, text in expected] == found


def test_a_certificate_that_is_not_valid_yet_is_about_the_clock() -> None:
    """It was valid when the instance began, or when the peer connected."""
    certificates = [("own", certificate("gw")), ("peer", certificate("peer"))]

    (warning,) = expiry_warnings(certificates, NOW - 2 * DAY)

    assert WarningKind.CLOCK is warning.kind
    assert warning.text.endswith("is not valid before 2025-12-31 00:00 UTC, by the clock of this machine: CN=gw")
    assert [] == list(expiry_warnings(certificates, NOW - DAY))


def test_of_many_that_end_soon_some_are_named_and_the_others_counted() -> None:
    many = [("trust", certificate(str(number), 1)) for number in range(WARNINGS_MAX + 5)]

    found = list(expiry_warnings(many, NOW))

    assert (WARNINGS_MAX + 1, "5 more certificates end soon") == (len(found), found[-1].text)


async def test_a_peer_that_is_connected_since_it_was_refused_is_no_warning(gateway: Any) -> None:
    now = asyncio.get_running_loop().time()
    gateway.peers.handshaker.refused["10.0.0.7", "the peer's certificate is not trusted (CN=a)"] = now
    gateway.peers.handshaker.refused["10.0.0.7", "the peer does not trust this instance's certificate (CN=gw)"] = now
    links = [
        SimpleNamespace(
            address=f"tcp://{host}:5", online_at=at, transport=SimpleNamespace(identity=certificate(name), chain=())
        )
        for host, at, name in (
            ("10.0.0.8", now + 1, "a"),
            ("10.0.0.7", now + 1, "b"),
            ("10.0.0.7", now - 1, "a"),
            ("10.0.0.7", now + 1, "a"),
        )
    ]

    told = []
    for link in links:
        gateway.peers.links[1] = link
        told += [[one.kind for one in read(gateway, "transport").transport.status.notices].count(WarningKind.REFUSED)]
        del gateway.peers.links[1]

    assert [2, 1, 2, 0] == told


async def test_of_the_refusals_of_a_host_that_name_nobody_the_last_counts(gateway: Any) -> None:
    host, refused = "10.0.0.7", gateway.peers.handshaker.remember_refused
    untrusted = "the peer's certificate is not trusted (CN=a), why: put that certificate into endpoint.peers here"
    refused(f"tcp://{host}:1", "the peer speaks plain text")
    for length in range(2 * REFUSED_MAX):
        refused("tcp://10.0.0.8:1", f"frame of {length} bytes")
    refused(f"tcp://{host}:2", untrusted)
    refused(f"tcp://{host}:3", "CN=b may not connect")

    told = read(gateway, "transport").transport.status.notices

    assert [
        f"a peer at 10.0.0.8 was refused: frame of {2 * REFUSED_MAX - 1} bytes",
        f"a peer at {host} was refused: {untrusted}",
        f"a peer at {host} was refused: CN=b may not connect",
    ] == [one.text for one in told if one.kind == WarningKind.REFUSED]


async def test_an_instance_is_ready_until_its_own_certificate_ends(gateway: Any) -> None:
    ready = []
    for days in (1, -1):
        own = Identity("CN=own", "sha256:1", (), NOW, datetime.now(UTC) + timedelta(days=days))
        gateway.certificates.security = Security(Encryption.REQUIRED, own=own)
        ready.append(read(gateway).is_ready)

    assert [True, False] == ready


async def test_a_certificate_is_in_the_status_with_the_days_that_are_left(gateway: Any) -> None:
    end = datetime.now(UTC) + timedelta(days=3, hours=1)
    peer = Identity("CN=peer", "sha256:1", (), NOW, end)
    gateway.peers.links[1] = SimpleNamespace(transport=SimpleNamespace(chain=(peer,)))

    told = read(gateway, "transport").transport.status.certificates
    del gateway.peers.links[1]

    assert [CertificateStatus("peer", "CN=peer", "sha256:1", end.isoformat(timespec="seconds"), 3)] == told


async def test_warnings_say_what_they_are_about(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.certificates.problem = "endpoint.trust: gone"
    monkeypatch.setattr(type(gateway.peers.permissions), "warning", "no peer may connect")
    admin = AdminSettings.read({"listen": "127.0.0.1:9422"})
    gateway.settings = gateway.settings.replace(admin=admin)
    gateway.peers.handshaker.remember_refused("tcp://10.0.0.7:5", "CN=a may not connect")
    gateway.peers.handshaker.refused["10.0.0.8", "long ago"] = asyncio.get_running_loop().time() - 2 * REFUSED_SECONDS

    found = read(gateway, "transport").transport.status.notices
    gateway.catalog.permitted_at = asyncio.get_running_loop().time()
    refused = [one for one in read(gateway, "transport").transport.status.notices if one.kind == WarningKind.REFUSED]

    assert [] == refused  # a permission may let them in now
    assert [
        TransportWarning(WarningKind.PLAIN_TEXT, "connections are not encrypted"),
        TransportWarning(WarningKind.FILES_NOT_IN_USE, "certificate files are not in use: endpoint.trust: gone"),
        TransportWarning(WarningKind.PERMISSIONS, "no peer may connect"),
        TransportWarning(WarningKind.LOOPBACK, "every user of this machine has the role admin on 127.0.0.1:9422"),
        TransportWarning(WarningKind.REFUSED, "a peer at 10.0.0.7 was refused: CN=a may not connect"),
    ] == found
