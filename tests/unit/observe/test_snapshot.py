"""A connection is shown by what it does, in the view, the status and the metrics alike."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.net.quotas import Permissions
from broker.observe import snapshot as next_hop
from broker.observe.snapshot import (
    HeldCopy,
    copy_held,
    forwarded_samples,
    held_values,
    mirror_rows,
    mirror_status,
    next_hop_status,
    principal_samples,
    read_drops,
    read_mirrors,
    state_samples,
    why_held,
)
from broker.observe.status import read_status
from broker.observe.view_rows import Snapshots
from broker.observe.views import DISPOSITIONS, MEMORY_VIEWS, MIRRORS
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import HEAD_MAX_BYTES, Flag, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import MirroredPair
from tests.support.pack import pack_of
from tests.support.scraped import samples_of
from tests.unit.observe.conftest import DEAD


async def connected(start: Any, send: Any, until: Any) -> tuple[Any, Any]:
    """An instance that has sent a message to another."""
    target = await start("target")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.forwarder.received)
    return near, target


async def test_status_tells_what_a_connection_does(start: Any, send: Any, until: Any) -> None:
    near, target = await connected(start, send, until)

    (out,), (into,) = read_status(near)["connections"], read_status(target)["connections"]

    assert [(one["direction"], one["flow"], one["flow_reason"]) for one in (out, into)] == [
        ("out", "flowing", ""),
        ("in", "flowing", ""),
    ]
    (link,) = near.peers.links.values()
    apart = datetime.fromisoformat(out["last_progress"]) - datetime.fromisoformat(out["flow_since"])
    assert apart.total_seconds() == pytest.approx(link.activity.progress_at - link.activity.since, abs=0.002)


async def test_view_tells_the_same(start: Any, send: Any, until: Any) -> None:
    near, _ = await connected(start, send, until)

    (row,) = await asyncio.to_thread(Snapshots(near).connections)

    assert row[-5:-3] == ("flowing", None)
    (link,) = near.peers.links.values()
    since, progress = row[-3], row[-2]
    assert isinstance(since, datetime)
    assert isinstance(progress, datetime)
    assert (progress - since).total_seconds() == pytest.approx(
        link.activity.progress_at - link.activity.since, abs=0.002
    )


async def test_metrics_count_connections_by_state_and_by_flow(start: Any, send: Any, until: Any) -> None:
    near, _ = await connected(start, send, until)

    samples = await samples_of(near)

    assert samples["broker_connections"] == {("target", "out", "LOGGED_IN"): 1}
    assert samples["broker_connection_flows"] == {("target", "out", "flowing"): 1}


# --- test_drop ---
# What was dropped, as rows: each reason with its count and the head of the last frame.


AT = datetime(2030, 1, 1, tzinfo=UTC)
HEADER = Header(FrameKind.MESSAGE, 0, b"m" * 16, b"c" * 16, "//far", "//near", b"f" * 16, sequence_number=5)


def instance(gone: dict[Disposition, int] | None = None, **endpoints: Any) -> Any:
    """One that serves these databases; `gone` is what those dropped that it serves no more."""
    forwarder = Forwarder(
        Limits(1 << 20, 1 << 20, 16), deliver=lambda *_: None, request_link=lambda _: None, health_of=health
    )
    past, peers = SimpleNamespace(dropped=Counter(gone)), SimpleNamespace(permissions=Permissions())
    return SimpleNamespace(forwarder=forwarder, endpoints=endpoints, past=past, peers=peers)


def health(_address: object) -> AddressHealth:
    return AddressHealth.UNTRIED


def endpoint(disposition: Disposition, frames: int, header: Header | None) -> Any:
    return SimpleNamespace(dropped=Counter({disposition: frames}), last_dropped={disposition: (3.0, header)})


def shown(rows: list[tuple[object, ...]]) -> list[dict[str, object]]:
    return [dict(zip(MEMORY_VIEWS[DISPOSITIONS], row, strict=True)) for row in rows]


def test_nothing_dropped_is_no_row() -> None:
    assert [] == read_drops(instance(), AT)


def test_the_head_of_the_last_frame_is_told_and_its_body_is_not_kept() -> None:
    one = instance()
    one.forwarder.drop(encode_dialog(HEADER, b""), Disposition.NO_ROUTE, None)
    one.forwarder.drop(encode_dialog(HEADER, bytes(100_000)), Disposition.NO_ROUTE, None)

    (row,) = shown(read_drops(one, AT))

    assert HEAD_MAX_BYTES == len(one.forwarder.last_dropped[Disposition.NO_ROUTE][1])
    assert ("no route", 9798, None, 2, AT) == tuple(row.values())[:5]
    assert (UUID(bytes=b"c" * 16), "//far", "//near", 5) == (
        row["conversation_id"],
        row["to_service_name"],
        row["from_service_name"],
        row["message_sequence_number"],
    )


def test_what_is_not_permitted_tells_who_lacks_what() -> None:
    one = instance()
    one.peers.permissions.last_refusal = "CN=a may not send: no GRANT"
    for disposition in (Disposition.NO_ROUTE, Disposition.NOT_PERMITTED):
        one.forwarder.drop(encode_dialog(HEADER, b""), disposition, None)

    rows = shown(read_drops(one, AT))

    assert [("not permitted", "CN=a may not send: no GRANT"), ("no route", None)] == [
        (row["disposition"], row["reason"]) for row in rows
    ]


def test_a_frame_too_short_for_a_head_is_counted_without_one() -> None:
    one = instance()
    one.forwarder.drop(b"\x10" * 20, Disposition.MALFORMED, None)

    (row,) = shown(read_drops(one, AT))

    assert (1, None) == (row["frames"], row["conversation_id"])


def test_what_databases_dropped_that_are_gone_stays_in_the_sum() -> None:
    (row,) = shown(read_drops(instance(gone={Disposition.DUPLICATE: 4}), AT))

    assert ("duplicate", None, 4, None) == (row["disposition"], row["database_name"], row["frames"], row["last_time"])


def test_each_database_has_rows_of_its_own_in_the_order_of_the_reasons() -> None:
    one = instance(orders=endpoint(Disposition.DUPLICATE, 3, HEADER), billing=endpoint(Disposition.DUPLICATE, 4, None))
    one.forwarder.drop(encode_dialog(HEADER, b""), Disposition.NO_ROUTE, None)

    rows = shown(read_drops(one, AT))

    told = [(row["disposition"], row["database_name"], row["frames"], row["to_service_name"]) for row in rows]
    assert [
        ("no route", None, 1, "//far"),
        ("duplicate", "orders", 3, "//far"),
        ("duplicate", "billing", 4, None),
    ] == told
    assert AT + timedelta(seconds=3) == rows[1]["last_time"]


ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"


@pytest.fixture
async def gateway(start: Any) -> Any:
    return await start("gateway", msdb=ROUTE)


def _held(gateway: Any, *, after: float = 0.0) -> dict[str, object]:
    (outbox,) = gateway.forwarder.table.outboxes.values()
    now = asyncio.get_running_loop().time() + after
    copy = copy_held(outbox, gateway.peers, gateway.mirrors, now=now)
    (held,) = copy.frames
    return held_values(held, copy)


async def test_frame_is_shown_with_every_column(gateway: Any, take: Any) -> None:
    take(gateway, sequence_number=7, fragment_number=2, hop_limit=16, hop_count=3)

    values = _held(gateway)

    why = values.pop("why_held")
    assert isinstance(why, str)
    assert why.startswith("waiting for a connection to tcp://127.0.0.1:1")
    assert values == {
        "conversation_id": uuid.UUID(int=2),
        "is_initiator": True,
        "to_service_name": "//far",
        "to_broker_instance": None,
        "from_service_name": "//near",
        "from_broker_instance": uuid.UUID(int=3),
        "adjacent_broker_address": "tcp://127.0.0.1:1",
        "message_sequence_number": 7,
        "message_fragment_number": 2,
        "hops_remaining": 12,
        "time_to_live": 60,
        "time_consumed": 0,
        "message_id": uuid.UUID(int=1),
        "held_ms": values["held_ms"],
        "frame_bytes": 114 + len("//far") + len("//near") + len("body"),
    }


async def test_answer_of_a_target_to_one_instance(gateway: Any, take: Any) -> None:
    take(gateway, flags=Flag.FROM_TARGET, to_broker_instance=bytes(15) + b"\4")

    values = _held(gateway)

    assert (False, uuid.UUID(int=4)) == (values["is_initiator"], values["to_broker_instance"])


async def test_wait_counts_as_life(gateway: Any, take: Any) -> None:
    take(gateway, time_to_live=60_000, time_consumed=1_500)

    values = _held(gateway, after=10.0)

    assert (60, 11) == (values["time_to_live"], values["time_consumed"])
    assert 10_000 <= int(str(values["held_ms"])) < 12_000


async def test_short_life_is_not_shown_as_none(gateway: Any, take: Any) -> None:
    take(gateway, time_to_live=900)

    assert _held(gateway)["time_to_live"] == 1


async def test_unspecified_sender_is_null(gateway: Any, take: Any) -> None:
    take(gateway, from_broker_instance=bytes(16))

    assert _held(gateway)["from_broker_instance"] is None


async def test_name_that_is_no_text_is_shown_anyhow(gateway: Any, take: Any) -> None:
    """The pass reads the name of the sender not at all, so it may be anything."""
    take(gateway, from_service="ab")
    (outbox,) = gateway.forwarder.table.outboxes.values()
    (held,) = outbox.held
    odd = held._replace(frame=held.frame.replace(b"ab", b"\xff\xfe"))

    values = held_values(odd, HeldCopy((odd,), held.since, "tcp://127.0.0.1:1", "because"))

    assert values["from_service_name"] == "\ufffd\ufffd"


async def test_frames_that_wait_together_are_told_of_one_by_one(gateway: Any, take: Any) -> None:
    take(gateway, sequence_number=1)
    (outbox,) = gateway.forwarder.table.outboxes.values()
    (held,) = outbox.held
    pack = pack_of([held.frame, held.frame + b"x"], held.since)

    copy = HeldCopy((held, pack), held.since, "tcp://127.0.0.1:1", "because")

    assert [len(held.frame) + more for more in (0, 0, 1)] == [
        held_values(one, copy)["frame_bytes"] for one in copy.frames
    ]


async def test_empty_outbox_has_nothing_to_copy(gateway: Any) -> None:
    from broker.routing.address import NetworkAddress

    outbox = gateway.forwarder.table.outbox(NetworkAddress("far.example"))

    assert copy_held(outbox, gateway.peers, gateway.mirrors, now=0.0).pieces == ()


# --- test_mirror ---
# Mirrored routes in use, as rows, as a status and as metrics.


NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
PAIR = MirroredPair("//billing", UUID(int=1), NORTH, SOUTH)


class Mirrors:
    """One pair: north says that it is the principal, south cannot be reached; two frames wait."""

    def __init__(self) -> None:
        route = MirroredRoute(NORTH, SOUTH, lambda: 0.0)
        route.use(100.0)
        self.in_use = {PAIR: SimpleNamespace(route=route)}
        self.route = route

    def lead(self) -> None:
        self.route.on_reply(NORTH, "principal", 3, 101.0)
        self.route.on_unreachable(SOUTH, "Connection refused", 101.0)

    def waiting(self, pair: MirroredPair) -> tuple[int, int]:
        return {PAIR: (2, 700)}[pair]

    def route_name(self, pair: MirroredPair) -> str:
        return {PAIR: "to billing"}[pair]


@pytest.fixture
def mirrors() -> Any:
    return Mirrors()


def row(mirrors: Any) -> dict[str, object]:
    ((one),) = mirror_rows(read_mirrors(mirrors, 102.0))
    return dict(zip(MEMORY_VIEWS[MIRRORS], one, strict=True))


def test_row_tells_both_partners_and_what_waits(mirrors: Any) -> None:
    """Instants are of the wall clock."""
    mirrors.lead()
    told = row(mirrors)

    asked, answered = told.pop("address_probe_time"), told.pop("address_answer_time")
    assert isinstance(asked, datetime)
    assert isinstance(answered, datetime)
    assert abs((datetime.now(UTC) - asked).total_seconds() - 2) < 60
    assert 1.0 == pytest.approx((answered - asked).total_seconds(), abs=0.001)
    assert told.pop("mirror_probe_time") == asked
    assert told == {
        "route_name": "to billing",
        "remote_service_name": "//billing",
        "broker_instance": UUID(int=1),
        "address": "tcp://north:4022",
        "mirror_address": "tcp://south:4022",
        "principal_address": "tcp://north:4022",
        "state": 2,
        "state_desc": "PRINCIPAL_ONLY",
        "epoch": 3,
        "address_role": "principal",
        "address_epoch": 3,
        "address_problem": None,
        "mirror_answer_time": None,
        "mirror_role": None,
        "mirror_epoch": None,
        "mirror_problem": "Connection refused",
        "next_probe_time": None,
        "waiting_messages": 2,
        "waiting_bytes": 700,
        "alarm": None,
    }


def test_row_of_a_pair_without_principal_tells_when_it_is_asked_again(mirrors: Any) -> None:
    """And nothing of answers that did not come."""
    told = row(mirrors)

    assert (3, None) == (told["state"], told["principal_address"])
    assert isinstance(told["next_probe_time"], datetime)


def test_status_is_plain_json(mirrors: Any) -> None:
    """With the addresses as keys."""
    mirrors.lead()

    (status,) = mirror_status(read_mirrors(mirrors, 102.0))

    assert status == json.loads(json.dumps(status))
    assert status == {
        "route": "to billing",
        "service": "//billing",
        "broker_instance": str(UUID(int=1)),
        "state": "PRINCIPAL_ONLY",
        "principal": "tcp://north:4022",
        "epoch": 3,
        "partners": {
            "tcp://north:4022": {"role": "principal", "epoch": 3, "problem": ""},
            "tcp://south:4022": {"role": None, "epoch": None, "problem": "Connection refused"},
        },
        "held": 2,
        "held_bytes": 700,
        "alarm": "",
    }


def test_metrics_tell_which_address_is_the_principal(mirrors: Any) -> None:
    """Neither, while none is known."""
    north, south = ("to billing", "tcp://north:4022"), ("to billing", "tcp://south:4022")
    assert ({north: 0, south: 0}, {("to billing",): 3}) == (
        dict(principal_samples(mirrors)),
        dict(state_samples(mirrors)),
    )

    mirrors.lead()

    assert ({north: 1, south: 0}, {("to billing",): 2}) == (
        dict(principal_samples(mirrors)),
        dict(state_samples(mirrors)),
    )


def test_frames_that_left_are_told_by_the_principal_of_that_time() -> None:
    """And of plain addresses as ever."""
    forwarder = Forwarder(
        Limits(1 << 20, 1 << 16, 16),
        deliver=lambda *_: None,
        request_link=lambda _: None,
        health_of=lambda _: AddressHealth.UNTRIED,
    )
    ways = forwarder.table
    pair = ways.entry_to(ways.pair_outbox(PAIR), Disposition.FORWARDED, "to billing", 0x10)
    plain = ways.entry_to(ways.outbox(SOUTH), Disposition.FORWARDED, "plain", 0x10)
    forwarder.set_principals({PAIR: NORTH}, 1.0)
    pair.frames, plain.frames = 3, 5
    ways.drop_entry(Disposition.NO_ROUTE, 0x10).frames = 7
    forwarder.set_principals({PAIR: None}, 2.0)
    assert {("plain", str(SOUTH)): 5, ("to billing", str(NORTH)): 3} == told(forwarder)

    forwarder.set_principals({PAIR: SOUTH}, 3.0)
    pair.frames = 2

    assert {
        ("plain", str(SOUTH)): 5,
        ("to billing", str(NORTH)): 3,
        ("to billing", str(SOUTH)): 2,
    } == told(forwarder)
    assert forwarder.forwarded == 10


def test_frames_that_left_are_told_as_of_the_first_step() -> None:
    """Whatever happens while the others are made: a way more, frames more, another principal."""
    forwarder = Forwarder(
        Limits(1 << 20, 1 << 16, 16),
        deliver=lambda *_: None,
        request_link=lambda _: None,
        health_of=lambda _: AddressHealth.UNTRIED,
    )
    ways = forwarder.table
    plain = ways.entry_to(ways.outbox(SOUTH), Disposition.FORWARDED, "plain", 0x10)
    pair = ways.entry_to(ways.pair_outbox(PAIR), Disposition.FORWARDED, "to billing", 0x10)
    forwarder.set_principals({PAIR: NORTH}, 1.0)
    plain.frames, pair.frames = 5, 3
    samples = forwarded_samples(forwarder)

    first = next(samples)
    plain.frames, pair.frames = 6, 4
    forwarder.set_principals({PAIR: SOUTH}, 2.0)
    ways.entry_to(ways.outbox(NORTH), Disposition.FORWARDED, "later", 0x10).frames = 1

    assert [(("plain", str(SOUTH)), 5), (("to billing", str(NORTH)), 3)] == [first, *samples]


def told(forwarder: Forwarder) -> dict[Any, float]:
    added: Counter[Any] = Counter()
    for labels, frames in forwarded_samples(forwarder):
        added[labels] += cast("int", frames)
    return dict(added)


async def test_view_is_asked_like_any_other(start: Any) -> None:
    """By a statement, of an instance that runs."""
    instance = await start(
        "gateway",
        msdb="CREATE ROUTE pair WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '00000000-0000-0000-0000-000000000001',"
        " ADDRESS = 'tcp://127.0.0.1:1', MIRROR_ADDRESS = 'tcp://127.0.0.1:2'",
    )
    (route,) = instance.catalog.msdb.table.routes("//far", UUID(int=1).bytes)
    instance.mirrors.use(route.pair)
    await asyncio.sleep(0)

    (shown,) = read_mirrors(instance.mirrors, asyncio.get_running_loop().time())

    assert (route.pair, "pair", "NOT_OPERATIONAL") == (shown.pair, shown.route_name, shown.state_desc)


async def test_what_waits_for_a_next_hop_is_told_with_its_age_and_the_reason(
    start: Callable[..., Any], take: Callable[..., Any]
) -> None:
    instance = await start("one", msdb=f"CREATE ROUTE Far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'")
    take(instance, to_service="//far")
    take(instance, to_service="//far", sequence_number=1)

    [told] = next_hop_status(instance, asyncio.get_running_loop().time() + 5)

    assert (DEAD, 2) == (told["next_hop"], told["held"])
    assert 5 <= told["oldest_s"] < 60
    assert told["held_bytes"] > 0
    assert told["why"]


async def test_a_next_hop_for_which_nothing_waits_is_not_told(start: Callable[..., Any]) -> None:
    instance = await start("one")

    assert [] == next_hop_status(instance, asyncio.get_running_loop().time())


async def test_of_many_those_with_most_are_told(
    start: Callable[..., Any], take: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "tcp://127.0.0.1:2"
    to_both = f"CREATE ROUTE A WITH SERVICE_NAME = '//a', ADDRESS = '{DEAD}'; "
    to_both += f"CREATE ROUTE B WITH SERVICE_NAME = '//b', ADDRESS = '{other}'"
    instance = await start("one", msdb=to_both)
    take(instance, to_service="//a")
    take(instance, to_service="//b")
    take(instance, to_service="//b", sequence_number=1)
    monkeypatch.setattr(next_hop, "NEXT_HOPS_MAX", 1)

    assert [(other, 2)] == [(one["next_hop"], one["held"]) for one in next_hop_status(instance, 0.0)]


DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"
DEAD_of_waiting = NetworkAddress("127.0.0.1", 1)


class Link:
    """An outlet of the kind that a test needs."""

    max_frame = 1 << 20
    is_narrow = False

    def __init__(self, *, can_send: bool) -> None:
        self.can_send = can_send

    def send(self, data: bytes) -> int:
        return len(data)

    def finish(self, rest: bytes) -> None:
        raise AssertionError(rest)


async def test_held_frames_wait_for_the_connection_or_for_room(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.table.outboxes[DEAD_of_waiting]
    gateway.peers.table.histories[DEAD_of_waiting].problem = "Connection refused"

    unconnected = why_held(outbox, gateway.peers, gateway.mirrors)
    outbox.outlet = Link(can_send=False)
    full = why_held(outbox, gateway.peers, gateway.mirrors)

    held = f"; {outbox.share.used_bytes} of at most {32 * 1024 * 1024} bytes wait for it"
    assert unconnected == f"waiting for a connection to tcp://127.0.0.1:1: Connection refused{held}"
    assert full == f"the connection to tcp://127.0.0.1:1 takes no more at the moment{held}"


async def test_held_frames_that_leave_no_room_say_so(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    outbox = gateway.forwarder.table.outboxes[DEAD_of_waiting]

    gateway.forwarder.pool.limit_bytes = 2 * outbox.share.used_bytes

    used = outbox.share.used_bytes
    assert why_held(outbox, gateway.peers, gateway.mirrors).endswith(
        f"; {used} of at most {used} bytes wait for it, no room for more"
    )


async def test_frames_for_a_mirrored_pair_wait_for_its_principal_and_then_for_a_link(start: Any, take: Any) -> None:
    pair_route = (
        "CREATE ROUTE pair WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '00000000-0000-0000-0000-000000000001',"
        " ADDRESS = 'tcp://127.0.0.1:1', MIRROR_ADDRESS = 'tcp://127.0.0.1:2'"
    )
    gateway = await start("gateway", msdb=pair_route)
    take(gateway)
    ((pair, outbox),) = gateway.forwarder.table.pair_outboxes.items()

    unasked = why_held(outbox, gateway.peers, gateway.mirrors)
    gateway.forwarder.set_principals({pair: DEAD_of_waiting}, 1.0)
    gateway.peers.table.histories[DEAD_of_waiting].problem = "Connection refused"
    known = why_held(outbox, gateway.peers, gateway.mirrors)

    assert unasked.startswith("principal unknown (9794): both partners are about to be asked; ")
    assert known.startswith(f"waiting for a connection to {DEAD_of_waiting}: Connection refused; ")
