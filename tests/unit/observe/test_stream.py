""""""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from broker.observe.database_stats import Stock
from broker.observe.snapshot import carried_by_way
from broker.observe.status import read_status
from broker.observe.stream import (
    COLUMNS,
    GONE_MAX,
    GONE_SECONDS,
    PEERS_MAX,
    ROWS_MAX,
    Counts,
    InstanceSample,
    Rates,
    StatsHistory,
    StatsStream,
    read_counts,
)
from broker.store.sqlite.inspect import Backlog, LedgerBalance, QueueStock, WaitReason
from tests.unit.observe.conftest import DEAD


async def test_the_counts_of_an_instance(start: Callable[..., Any], take: Callable[..., Any]) -> None:
    instance = await start("one", msdb=f"CREATE ROUTE Far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'")
    take(instance, to_service="//far")
    take(instance, to_service="//absent")

    counts = read_counts(instance)

    forwarder = instance.forwarder
    assert (2, 1, 1, 0) == (counts.received, counts.held, counts.dropped, counts.forwarded)
    assert forwarder.pool.used_bytes == counts.pool_bytes > 0


def ring(rows: int) -> StatsHistory:
    past = StatsHistory()
    for second in range(rows):
        past.note(
            Counts(received=10 * second, held=second), {"loop_lag_s": 0.25}, at=1000.0 + second, now=float(second)
        )
    return past


def test_a_row_has_every_column() -> None:
    told = ring(2).since()

    row = dict(zip(told["columns"], told["rows"][1], strict=True))
    assert (COLUMNS, 2) == (told["columns"], len(told["rows"]))
    assert (1001.0, 10.0, 1, 0.25, None) == tuple(
        row[name] for name in ("at", "received", "held", "loop_lag_s", "hop_p99_s")
    )


def test_the_first_row_knows_no_rate() -> None:
    told = ring(1).since()

    assert told["rows"][0][COLUMNS.index("received")] is None


def test_the_oldest_rows_give_way() -> None:
    told = ring(ROWS_MAX + 5).since()

    assert (ROWS_MAX, 1005.0) == (len(told["rows"]), told["rows"][0][0])


@pytest.mark.parametrize(("known", "rows"), [(0, 7), (3, 4), (7, 0), (9, 0), (-5, 7)])
def test_only_what_is_new_is_told_to_whoever_knows_the_rest(known: int, rows: int) -> None:
    assert rows == len(ring(7).since(known)["rows"])


def test_of_what_is_gone_only_the_rest_is_told() -> None:
    assert ROWS_MAX == len(ring(ROWS_MAX + 100).since(20)["rows"])


AT = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SNAPSHOT_MAX = 256 * 1024  # bytes of JSON, whatever there is
HOSTILE = "<script>alert(1)</script>\u202e" + "x" * 10_000


def link(name: str, address: str = "tcp://127.0.0.1:5", **counts: int) -> dict[str, Any]:
    usual = {"bytes_received": 0, "bytes_sent": 0, "frames_received": 0, "frames_rejected": 0}
    facts = {"name": name, "address": address, "direction": "in", "state": "LOGGED_IN", "encryption": "none"}
    return facts | {"principal": "", "slowed_by": ""} | usual | counts


def address(**facts: Any) -> dict[str, Any]:
    return {"health": "connected", "problem": "", "held": 0, "held_bytes": 0, "over_share": 0, "peer": ""} | facts


def status(**parts: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "name": "one",
        "software": "broker 1",
        "broker_instance": "GUID",
        "started_at": "2026",
        "uptime_s": 5.0,
        "ready": True,
        "loop": "uvloop",
        "kernel": "compiled",
        "listen": ["127.0.0.1:4022"],
        "forwarding": {
            "enabled": True,
            "held": 0,
            "unaccounted": 0,
            "pool_bytes": 0,
            "pool_limit_bytes": 100,
        },
        "connections": [],
        "addresses": {},
        "waiting": [],
        "mirrored_routes": [],
        "databases": {},
        "mirroring": {},
        "transport": {"warnings": [], "certificates": []},
    }
    return usual | parts


def facts(now: float = 0.0, counts: Counts | None = None, **parts: Any) -> InstanceSample:
    others = {name: parts.pop(name) for name in ("carried", "drops", "stocks", "latency") if name in parts}
    return InstanceSample(status=status(**parts), counts=counts or Counts(), now=now, at=AT, **others)


def drop(reason: str, frames: int) -> dict[str, Any]:
    names = ("to_service_name", "from_service_name", "conversation_id", "message_id", "message_sequence_number")
    sample = dict.fromkeys((*names, "hops_remaining", "last_time", "reason", "database_name"))
    return sample | {"disposition": reason, "message_number": 9798, "frames": frames}


async def test_a_running_instance_has_a_pulse(start: Callable[..., Any], take: Callable[..., Any]) -> None:
    instance = await start("one", msdb=f"CREATE ROUTE Far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'")
    take(instance, to_service="//far")
    state = read_status(instance)

    told = StatsStream().beat(
        InstanceSample(state, read_counts(instance), 0.0, AT, carried=carried_by_way(instance.forwarder))
    )  # fmt: skip

    assert ("one", 1, "2026-11-22T12:00:00.000+00:00") == (told["instance"]["name"], told["totals"]["held"], told["at"])
    assert [(DEAD, 1)] == [(one["name"], one["messages"]) for one in told["waiting"]["rows"]]
    assert ["one"] == [one["name"] for one in told["databases"]["rows"]]
    assert told == msgspec.json.decode(msgspec.json.encode(told))


def test_rates_are_known_from_the_second_look_on() -> None:
    pulse = StatsStream()
    first = pulse.beat(facts(0.0, Counts(received=10), connections=[link("a", bytes_sent=100)]))
    second = pulse.beat(facts(2.0, Counts(received=30), connections=[link("a", bytes_sent=500)]))

    assert (None, None, 0.0) == (first["rates"]["received"], first["rates"]["bytes_sent"], first["seconds"])
    assert (10.0, 200.0, 2.0) == (second["rates"]["received"], second["rates"]["bytes_sent"], second["seconds"])
    assert 200.0 == second["peers"]["rows"][0]["bytes_sent_s"]


def test_a_connection_that_is_gone_is_told_for_a_while() -> None:
    pulse = StatsStream()
    pulse.beat(facts(0.0, connections=[link("a")]))

    gone = pulse.beat(facts(1.0))
    later = pulse.beat(facts(GONE_SECONDS))
    at_last = pulse.beat(facts(GONE_SECONDS + 1.5))

    assert (0, [("a", "GONE", 0.0)]) == (
        gone["peers"]["count"],
        [(one["name"], one["state"], one["gone_s"]) for one in gone["peers"]["rows"]],
    )
    assert [GONE_SECONDS - 1] == [one["gone_s"] for one in later["peers"]["rows"]]
    assert [] == at_last["peers"]["rows"]


def test_a_peer_that_comes_back_is_not_gone() -> None:
    pulse = StatsStream()
    pulse.beat(facts(0.0, connections=[link("a")]))
    pulse.beat(facts(1.0))

    back = pulse.beat(facts(2.0, connections=[link("a", "tcp://127.0.0.1:6")]))

    assert [None] == [one["gone_s"] for one in back["peers"]["rows"]]


def test_of_many_that_are_gone_some_are_remembered() -> None:
    pulse = StatsStream()
    pulse.beat(facts(0.0, connections=[link(f"peer {number}") for number in range(1000)]))

    gone = pulse.beat(facts(1.0))

    assert (min(GONE_MAX, PEERS_MAX), 0) == (len(gone["peers"]["rows"]), gone["peers"]["count"])


def test_next_hops_have_what_was_carried_there() -> None:
    pulse, addresses = StatsStream(), {"tcp://a:1": address(peer="a"), "tcp://b:1": address(health="untried")}
    pulse.beat(facts(0.0, addresses=addresses, carried={("R", "tcp://a:1"): 5, ("S", "tcp://a:1"): 5}))

    told = pulse.beat(facts(1.0, addresses=addresses, carried={("R", "tcp://a:1"): 8, ("S", "tcp://a:1"): 6}))

    assert [("tcp://a:1", "a", 14, 4.0), ("tcp://b:1", "", 0, 0.0)] == [
        (one["address"], one["peer"], one["frames"], one["frames_s"]) for one in told["next_hops"]["rows"]
    ]
    assert [("R", 3.0), ("S", 1.0)] == [(one["route"], one["frames_s"]) for one in told["routes"]["rows"]]


def test_a_next_hop_that_is_gone_keeps_the_name_of_its_peer() -> None:
    pulse = StatsStream()
    pulse.beat(facts(0.0, addresses={"tcp://a:1": address(peer="a")}))

    told = pulse.beat(facts(1.0, addresses={"tcp://a:1": address(peer="", problem="refused")}))

    assert ["a"] == [one["peer"] for one in told["next_hops"]["rows"]]


def test_what_waits_in_a_database_is_told_with_its_reason() -> None:
    reason = WaitReason("//far", "no route", 3, 12.5)
    queue = QueueStock("Q", 2, 1, 4.0, is_receive_enabled=True)
    stock = Stock(Backlog(3, 12.5), LedgerBalance(sent=3, held=3), (queue,), 1, 1, (reason,))
    databases = {"orders": {"broker_instance": "GUID", "problem": "", "services": {}, "sending_dialogs": 1}}

    told = StatsStream().beat(facts(databases=databases, stocks={"orders": stock}))

    [waiting] = told["waiting"]["rows"]
    [row] = told["databases"]["rows"]
    assert ("orders → //far", 3, "no route") == (waiting["name"], waiting["messages"], waiting["why"])
    assert (3, 1, "Q", 2) == (
        row["waiting_messages"],
        row["quarantined"],
        row["queues"][0]["name"],
        row["queues"][0]["ready"],
    )
    assert "3 sent = 0 acknowledged + 3 held + 0 failed" == row["ledger"]
    assert "bad" == told["verdict"]["level"]  # a dialog is in quarantine


def test_a_file_that_was_not_read_is_unknown_and_not_empty() -> None:
    databases = {"orders": {"broker_instance": "GUID", "problem": "", "services": {}, "sending_dialogs": 0}}

    told = StatsStream().beat(facts(databases=databases, stocks={"orders": None}))

    [row] = told["databases"]["rows"]
    assert (None, None, None) == (row["waiting_messages"], row["queues"], row["ledger"])


def test_a_mirror_has_a_row_though_it_is_not_served_here() -> None:
    standing = {"source": "lock", "role": "mirror", "problem": "", "broker_instance": "GUID"}

    told = StatsStream().beat(facts(mirroring={"shop": standing, "plain": standing | {"source": "off"}}))

    assert [("shop", "mirror")] == [(one["name"], one["role"]) for one in told["databases"]["rows"]]


@pytest.mark.parametrize("unaccounted", [0, 7])
def test_the_ledger_says_whether_it_adds_up(unaccounted: int) -> None:
    counts = Counts(received=12, forwarded=3, delivered=2, dropped=0, held=0)
    told = StatsStream().beat(
        InstanceSample(status(forwarding=status()["forwarding"] | {"unaccounted": unaccounted}), counts, 0.0, AT)
    )

    assert ("UNACCOUNTED" in told["ledger"]["sentence"]) is bool(unaccounted)
    assert unaccounted == told["ledger"]["unaccounted"]


def test_drops_have_their_rate_and_their_sample() -> None:
    pulse = StatsStream()
    pulse.beat(facts(0.0, drops=[drop("no route", 5)]))

    told = pulse.beat(facts(1.0, drops=[drop("no route", 9) | {"do": "CREATE ROUTE"}]))

    [row] = told["drops"]["rows"]
    assert ("no route", 9798, 9, 4.0) == (row["reason"], row["number"], row["frames"], row["frames_s"])
    assert "CREATE ROUTE" == row["do"]
    assert "notice" == told["verdict"]["level"]


def test_certificates_of_its_own_and_those_that_end_are_told() -> None:
    certificates = [
        {"role": role, "name": role, "fingerprint": "f", "not_after": "2027", "days_left": days}
        for role, days in (("peer", 3), ("own", 300), ("trust", 900))
    ]

    told = StatsStream().beat(facts(transport={"warnings": [], "certificates": certificates}))

    assert ["peer", "own"] == [one["name"] for one in told["certificates"]]


def test_a_snapshot_has_a_bound_whatever_there_is() -> None:
    """Thousands of everything, and every name as hostile and as long as can be."""
    many = range(3000)
    parts: dict[str, Any] = {
        "connections": [link(f"{number}{HOSTILE}", f"{number}{HOSTILE}") for number in many],
        "addresses": {f"{number}{HOSTILE}": address(problem=HOSTILE, held=1) for number in many},
        "waiting": [
            {
                "next_hop": f"{number}{HOSTILE}",
                "held": 1,
                "held_bytes": 1,
                "oldest_s": 1.0,
                "why": HOSTILE,
                "next_attempt_s": 1.0,
            }
            for number in many
        ],
        "mirrored_routes": [
            {"route": HOSTILE, "service": HOSTILE, "state": "OPERATIONAL", "principal": HOSTILE, "alarm": HOSTILE}
            | {"partners": {f"{side}{HOSTILE}": {"role": None, "epoch": 1, "problem": HOSTILE} for side in (1, 2)}}
            for _ in many
        ],
        "databases": {
            f"{number}{HOSTILE}": {"broker_instance": "", "problem": HOSTILE, "services": {}, "sending_dialogs": 0}
            for number in many
        },
        "carried": {(f"{number}{HOSTILE}", HOSTILE): number for number in many},
        "drops": [drop(f"{number}{HOSTILE}", 1) | {"reason": HOSTILE} for number in many],
        "transport": {"warnings": [HOSTILE] * 10, "certificates": []},
    }
    pulse = StatsStream()
    pulse.beat(facts(0.0, **parts))

    told = pulse.beat(facts(1.0, **parts))

    assert len(msgspec.json.encode(told)) < SNAPSHOT_MAX
    assert (3000, 2960) == (told["peers"]["count"], told["peers"]["folded"]["count"])


def test_a_snapshot_is_one_line_of_json() -> None:
    told = StatsStream().beat(facts(connections=[link("a\nb\r\n\u2028")]))

    assert b"\n" not in msgspec.json.encode(told)
    assert "a\nb\r\n\u2028" == json.loads(msgspec.json.encode(told))["peers"]["rows"][0]["name"]


def test_the_first_look_knows_no_rate() -> None:
    rates = Rates()

    assert ({"a": None}, 0.0) == (rates.look({"a": 5}, 100.0), rates.seconds)


def test_a_rate_is_what_a_counter_grew_by_a_second() -> None:
    rates = Rates()
    rates.look({"a": 5, "b": 0}, 100.0)

    assert {"a": 10.0, "b": 0.0} == rates.look({"a": 25, "b": 0}, 102.0)
    assert 2.0 == rates.seconds


def test_a_new_counter_grew_from_nothing() -> None:
    rates = Rates()
    rates.look({}, 100.0)

    assert {"a": 3.0} == rates.look({"a": 3}, 101.0)


def test_a_counter_that_began_anew_has_grown_by_all_of_it() -> None:
    rates = Rates()
    rates.look({"a": 1000}, 100.0)

    assert {"a": 7.0} == rates.look({"a": 7}, 101.0)


def test_two_looks_at_one_instant_know_no_rate() -> None:
    rates = Rates()
    rates.look({"a": 1}, 100.0)

    assert ({"a": None}, 0.0) == (rates.look({"a": 2}, 100.0), rates.seconds)


def test_what_the_caller_does_with_its_counters_later_is_not_seen() -> None:
    rates, counters = Rates(), {"a": 1.0}
    rates.look(counters, 100.0)  # type: ignore[arg-type]  # str is hashable
    counters["a"] = 50.0

    assert {"a": 1.0} == rates.look({"a": 2}, 101.0)
