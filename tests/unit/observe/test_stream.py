"""Events: rates, the history, and lists that have a bound whatever there is."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from broker.flow import Disposition
from broker.observe.database_stats import DatabaseStats
from broker.observe.drops import DropSnapshot
from broker.observe.snapshot import (
    DatabaseSnapshot,
    LinkSnapshot,
    MirrorSnapshot,
    RouteFrames,
    Snapshot,
    TransportSnapshot,
    read_snapshot,
)
from broker.observe.status import (
    AddressStatus,
    CertificateStatus,
    ConnectionStatus,
    DatabaseStatus,
    MirrorStatus,
    NextHopStatus,
    PartnerStatus,
    TransportStatus,
)
from broker.observe.stream import (
    COLUMNS,
    GONE_MAX,
    GONE_SECONDS,
    PEERS_MAX,
    ROWS_MAX,
    Counters,
    Rates,
    StatsHistory,
    StatsStream,
    top_rows,
)
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import AddressState
from broker.routing.route import MirroredPair
from broker.store.sqlite.inspect import Backlog, LedgerBalance, QueueStock, WaitReason

EVENT_MAX = 384 * 1024  # bytes of JSON, whatever there is
HOSTILE = "<script>alert(1)</script>\r\n\u2028\u202e" + "x" * 10_000
Event = Callable[..., dict[str, Any]]


def ring(rows: int) -> StatsHistory:
    past = StatsHistory()
    for second in range(rows):
        counters = Counters(received=10 * second, held=second)
        past.record(counters, {"loop_lag_s": 0.25}, at=1000.0 + second, now=float(second))
    return past


def test_a_row_has_every_column_and_the_first_has_no_rate() -> None:
    found = ring(2).since()

    first, second = (dict(zip(found["columns"], row, strict=True)) for row in found["rows"])
    assert (COLUMNS, None) == (found["columns"], first["received"])
    assert (1001.0, 10.0, 1, 0.25, None) == tuple(
        second[name] for name in ("at", "received", "held", "loop_lag_s", "hop_p99_s")
    )


@pytest.mark.parametrize(
    ("size", "known", "rows"), [(7, 0, 7), (7, 3, 4), (7, 7, 0), (7, 9, 0), (7, -5, 7), (ROWS_MAX + 100, 20, ROWS_MAX)]
)
def test_rows_after_a_number_are_returned_as_far_as_they_are_kept(size: int, known: int, rows: int) -> None:
    found = ring(size).since(known)["rows"]

    assert rows == len(found)
    assert not found or found[-1][0] == 999.0 + size


@pytest.fixture
async def event(start: Any) -> Event:
    """Makes the next event of a stream, from parts of a snapshot or of a sample."""
    head = structs.replace(read_snapshot(await start("one"), ()), loop_time=0.0)

    def making(stream: StatsStream, now: float = 0.0, **parts: Any) -> dict[str, Any]:
        of_snapshot = {name: parts.pop(name) for name in list(parts) if name in Snapshot.__struct_fields__}
        snapshot = structs.replace(head, loop_time=now, **of_snapshot)
        usual: dict[str, Any] = {"counters": Counters(), "stats": {}, "latency": {}}
        made = stream.next(snapshot, **usual | parts)
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
        return plain

    return making


def link(name: str, address: str = "tcp://127.0.0.1:5", **more: Any) -> LinkSnapshot:
    fields: dict[str, Any] = dict.fromkeys(LinkSnapshot.__struct_fields__, 0)
    status = ConnectionStatus(name=name, address=address, direction="in", state="LOGGED_IN", flow="flowing", **more)
    return LinkSnapshot(**fields | {"status": status})


def database(problem: str = "") -> DatabaseSnapshot:
    return DatabaseSnapshot(DatabaseStatus(path="/a.db", problem=problem, sending_dialogs=1))


def drop(frames: int, reason: str = "") -> DropSnapshot:
    return DropSnapshot(Disposition.NO_ROUTE, None, frames, None, None, reason)


def test_rates_are_known_from_the_second_event_on(event: Event) -> None:
    stream = StatsStream()
    first = event(stream, 0.0, counters=Counters(received=10), links=(link("a", bytes_sent=100),))
    second = event(stream, 2.0, counters=Counters(received=30), links=(link("a", bytes_sent=500),))

    assert (None, None, 0.0) == (first["rates"]["received"], first["rates"]["bytes_sent"], first["seconds"])
    assert (10.0, 200.0, 2.0) == (second["rates"]["received"], second["rates"]["bytes_sent"], second["seconds"])
    assert 200.0 == second["peers"]["rows"][0]["bytes_sent_s"]


def test_a_connection_that_is_gone_is_shown_for_a_while(event: Event) -> None:
    stream = StatsStream()
    event(stream, 0.0, links=(link("a"),))

    gone, later, at_last = (event(stream, now) for now in (1.0, GONE_SECONDS, GONE_SECONDS + 1.5))

    [row] = gone["peers"]["rows"]
    assert (0, "a", "GONE", 0.0) == (gone["peers"]["count"], row["name"], row["state"], row["gone_s"])
    assert [GONE_SECONDS - 1] == [one["gone_s"] for one in later["peers"]["rows"]]
    assert [] == at_last["peers"]["rows"]
    event(stream, 70.0, links=(link("a"),))
    event(stream, 71.0)
    back = event(stream, 72.0, links=(link("a", "tcp://127.0.0.1:6"),))
    assert [None] == [one["gone_s"] for one in back["peers"]["rows"]]


def test_of_many_that_are_gone_some_are_remembered(event: Event) -> None:
    stream = StatsStream()
    event(stream, links=tuple(link(f"peer {number}") for number in range(1000)))

    assert min(GONE_MAX, PEERS_MAX) == len(event(stream, 1.0)["peers"]["rows"])


def test_next_hops_have_what_was_carried_there_and_keep_the_name_of_their_peer(event: Event) -> None:
    stream, served = StatsStream(), AddressStatus("connected", peer="a")
    addresses = (("tcp://a:1", served), ("tcp://b:1", AddressStatus("untried")))
    before, after = (
        (RouteFrames("R", "tcp://a:1", r), RouteFrames("S", "tcp://a:1", s), RouteFrames("", None, none))
        for r, s, none in ((5, 5, 9), (8, 6, 99))
    )
    event(stream, 0.0, addresses=addresses, by_route=before)

    made = event(stream, 1.0, addresses=addresses, by_route=after)
    gone = event(stream, 2.0, addresses=(("tcp://a:1", AddressStatus("suppressed", "refused")),), by_route=after)

    assert [("tcp://a:1", "a", 14, 4.0), ("tcp://b:1", "", 0, 0.0)] == [
        (one["address"], one["peer"], one["frames"], one["frames_s"]) for one in made["next_hops"]["rows"]
    ]
    assert [("R", 3.0), ("S", 1.0)] == [(one["route"], one["frames_s"]) for one in made["routes"]["rows"]]
    assert ["a"] == [one["peer"] for one in gone["next_hops"]["rows"]]


def test_what_waits_in_a_database_has_its_reason_and_decides_the_verdict(event: Event) -> None:
    reason = WaitReason("//far", "no route", 3, 12.5)
    queue = QueueStock("Q", 2, 1, 4.0, is_receive_enabled=True)
    stats = DatabaseStats(Backlog(3, 12.5), LedgerBalance(sent=3, held=3), 1, (queue,), 0, 1, (reason,))

    made = event(StatsStream(), databases=(("orders", database()),), stats={"orders": stats})

    [waiting] = made["waiting"]["rows"]
    [row] = made["databases"]["rows"]
    assert ("orders → //far", 3, "no route") == (waiting["name"], waiting["messages"], waiting["why"])
    assert (3, 1, "Q") == (row["waiting_messages"], row["quarantined"], row["queues"][0]["name"])
    assert "3 sent = 0 acknowledged + 3 held + 0 failed" == row["ledger"]
    assert made["verdict"]["findings"][0]["what"].startswith("1 dialog of orders in quarantine")


def test_a_reason_is_longer_than_a_name(event: Event) -> None:
    stats = DatabaseStats(Backlog(1, 1.0), reasons=(WaitReason("f" * 999, "r" * 599, 1, 1.0),))

    made = event(StatsStream(), databases=(("orders", database()),), stats={"orders": stats})

    [row] = made["waiting"]["rows"]
    assert (200, "r" * 599) == (len(row["name"]), row["why"])


def test_certificates_of_its_own_and_those_that_end_are_there(event: Event) -> None:
    days = {"peer": 3, "own": 300, "trust": 900}
    certificates = [CertificateStatus(role, days_left=left) for role, left in days.items()]

    made = event(StatsStream(), transport=TransportSnapshot(TransportStatus(certificates=certificates)))

    assert ["peer", "own"] == [one["role"] for one in made["certificates"]]


def test_an_event_has_a_bound_whatever_there_is(event: Event) -> None:
    """Thousands of everything, and every name as hostile and as long as can be."""
    many = range(3000)
    pair = MirroredPair(HOSTILE, UUID(int=1), NetworkAddress("a"), NetworkAddress("b"))
    partners = {f"{number}{HOSTILE}": PartnerStatus(problem=HOSTILE) for number in range(2)}
    mirror = MirrorStatus(HOSTILE, HOSTILE, principal=HOSTILE, partners=partners, alarm=HOSTILE)
    parts: dict[str, Any] = {
        "links": tuple(link(f"{number}{HOSTILE}", f"{number}{HOSTILE}") for number in many),
        "addresses": tuple((f"{number}{HOSTILE}", AddressStatus("suppressed", HOSTILE, 1)) for number in many),
        "next_hops": tuple(NextHopStatus(f"{number}{HOSTILE}", 1, 1, 1.0, HOSTILE, 1.0) for number in many),
        "mirrors": tuple(MirrorSnapshot(mirror, pair, 1, AddressState(), AddressState(), None) for _ in many),
        "databases": tuple((f"{number}{HOSTILE}", database(HOSTILE)) for number in many),
        "by_route": tuple(RouteFrames(f"{number}{HOSTILE}", HOSTILE, number) for number in many),
        "drops": tuple(drop(1, HOSTILE) for _ in many),
        "transport": TransportSnapshot(TransportStatus(warnings=[HOSTILE] * 10)),
    }
    stream = StatsStream()
    event(stream, 0.0, **parts)

    made = event(stream, 1.0, **parts)

    encoded = msgspec.json.encode(made)
    assert len(encoded) < EVENT_MAX
    assert b"\n" not in encoded
    assert (3000, 2960) == (made["peers"]["count"], made["peers"]["folded"]["count"])


def test_rates_are_growth_by_a_second() -> None:
    """A new counter grew from 0, and one that is smaller than before has grown by all of it."""
    rates = Rates()

    assert ({"a": None}, 0.0) == (rates.update({"a": 5}, 100.0), rates.seconds)
    assert {"a": 10.0, "b": 0.0} == rates.update({"a": 25, "b": 0}, 102.0)
    assert 2.0 == rates.seconds
    assert {"a": 3.5, "c": 1.5} == rates.update({"a": 7, "c": 3}, 104.0)
    assert ({"a": None}, 0.0) == (rates.update({"a": 8}, 104.0), rates.seconds)


@pytest.mark.parametrize(
    ("sizes", "most", "kept", "folded"),
    [
        ((1, 5, 2, 4), 2, [5, 4], {"count": 2, "size": 3}),
        ((1, 2), 2, [2, 1], {"count": 0, "size": 0}),
        ((None, None, None), 1, [None], {"count": 2, "size": 0}),
    ],
)
def test_the_heaviest_rows_stay_and_the_rest_is_added_up(
    sizes: tuple[float | None, ...], most: int, kept: list[float | None], folded: dict[str, int]
) -> None:
    rows = [{"size": size} for size in sizes]

    found = top_rows(rows, most, weight=lambda one: one["size"] or 0, sums=("size",))

    assert {"count": len(sizes), "rows": [{"size": size} for size in kept], "folded": folded} == found
