"""Real daemons write down what really happened, whatever ends them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

from broker.forwarding.ring import Sample
from broker.journal.files import files_of
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import PATIENCE, long_shop, receive, send, wait_acknowledged

Row = dict[str, Any]


def shop(net: Topology, **journal: Any) -> tuple[Daemon, Daemon]:
    """Sender, two gateways, target; all with a journal, and started; the sender and the target."""
    ends = long_shop(net, {"journal": {"directory": "flows", **journal}})
    net.start()
    return ends


def say(orders: Daemon, dialogs: int, messages: int) -> None:
    for _ in range(dialogs):
        send(orders, *(f"message {number}" for number in range(messages)))


def rows(daemon: Daemon) -> list[Row]:
    """Everything in the files of an instance."""
    found: list[Row] = []
    for path in files_of(daemon.directory / "flows", daemon.name):
        with pq.ParquetFile(path) as file:
            found += file.read().to_pylist()
    return found


def outcomes(daemon: Daemon, kind: str = "message") -> Counter[str]:
    return Counter(row["outcome"] for row in rows(daemon) if row["kind"] == kind)


@pytest.mark.timeout(240)
def test_every_visit_is_in_the_files_of_those_it_was_a_visit_to(net: Topology) -> None:
    orders, billing = shop(net, sample=1.0)
    say(orders, dialogs=3, messages=10)
    receive(billing, 30)
    wait_acknowledged(orders)
    told = net.daemons["east"].status()["journal"]
    assert (0, "") == (told["shed"], told["problem"])
    for daemon in net.daemons.values():
        assert 0 == daemon.stop()

    for gateway in ("east", "west"):
        assert outcomes(net.daemons[gateway])["forwarded"] >= 30
        assert {"forwarded"} == set(outcomes(net.daemons[gateway]))
    assert 30 == outcomes(billing)["delivered"]
    assert outcomes(orders)["sent"] == 30 == outcomes(orders)["acknowledged"]
    by_id: dict[bytes, list[Row]] = {}
    for daemon in net.daemons.values():
        for row in rows(daemon):
            by_id.setdefault(row["message_id"], []).append(row)
    delivered = [visits for visits in by_id.values() if any(row["outcome"] == "delivered" for row in visits)]
    whole = [visits for visits in delivered if visits[0]["kind"] == "message"]
    assert 30 == len(whole)
    for visits in whole:
        visits.sort(key=lambda row: (row["hop_count"], row["outcome"] not in {"sent", "resent"}))
        path = [(row["instance"], row["hop_count"]) for row in visits if row["outcome"] != "acknowledged"]
        assert [("orders", 0), ("east", 0), ("west", 1), ("billing", 2)] == path
        assert ["out", "ToWest", "ToBilling", None] == [
            row["route"] for row in visits if row["outcome"] != "acknowledged"
        ]
        assert ["orders", "msdb", "msdb", None] == [
            row["route_table"] for row in visits if row["outcome"] != "acknowledged"
        ]
        assert "east" in {row["adjacent_in"] for row in visits if row["instance"] == "west"}
        assert all(row["entered_at"] <= row["left_at"] for row in visits)
    forwarded = [row for row in rows(net.daemons["west"]) if row["kind"] == "message"]
    assert any(row[name].microsecond % 1000 for row in forwarded for name in ("entered_at", "left_at"))


@pytest.mark.timeout(240)
def test_sampled_dialogs_are_the_same_everywhere_and_drops_are_always_there(net: Topology) -> None:
    orders, billing = shop(net, sample=0.3)
    say(orders, dialogs=40, messages=1)
    receive(billing, 40)
    wait_acknowledged(orders)
    net.daemons["west"].admin.sql("DROP ROUTE ToBilling;")
    say(orders, dialogs=20, messages=1)
    wait_for(
        lambda: sum(net.daemons["west"].status()["forwarding"]["dropped"].values()) >= 20,
        seconds=PATIENCE,
        what="drops",
    )
    for daemon in net.daemons.values():
        daemon.stop()

    sample = Sample(0.3)
    seen = {
        name: {row["conversation_id"] for row in rows(daemon) if row["outcome"] != "dropped"}
        for name, daemon in net.daemons.items()
    }
    assert seen["orders"] == seen["east"] > seen["west"] >= seen["billing"]
    assert all(conversation in sample for each in seen.values() for conversation in each)
    lost = {row["conversation_id"] for row in rows(net.daemons["west"]) if row["outcome"] == "dropped"}
    assert 20 == len(lost)
    assert {"service not here"} == {row["reason"] for row in rows(net.daemons["west"]) if row["outcome"] == "dropped"}


@pytest.mark.timeout(240)
def test_killed_instance_leaves_whole_files_and_at_most_one_other(net: Topology) -> None:
    orders, billing = shop(net, file_age="1s")
    east = net.daemons["east"]
    say(orders, dialogs=1, messages=20)
    receive(billing, 20)
    wait_for(lambda: east.status()["journal"]["files"] > 0, seconds=PATIENCE, what="a file")
    say(orders, dialogs=1, messages=20)
    receive(billing, 20)
    wait_for(lambda: east.status()["journal"]["pending"] > 0 or rows(east), seconds=PATIENCE, what="records")

    east.kill()

    flows = east.directory / "flows"
    left = [path for path in flows.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert len(left) <= 1
    assert len(rows(east)) > 0  # each of its files can be read
    east.start()
    wait_for(lambda: not any(path.exists() for path in left), seconds=PATIENCE, what="leftovers gone")
