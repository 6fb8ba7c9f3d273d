"""Real daemons write down what really happened, whatever ends them."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import broker
from bench.forwarding import Scenario
from bench.journal import measure
from broker.forwarding.ring import Sample
from broker.journal.files import files_of
from examples.demo.topology import Daemon, Topology, wait_for

BILLING, ORDERS = "//shop/Billing", "//shop/Orders"
SECONDS = 60.0
EVERYTHING = {"directory": "flows", "sample": 1.0}

Row = dict[str, Any]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def shop(net: Topology, journal: dict[str, Any] = EVERYTHING) -> tuple[Daemon, Daemon]:
    """Sender, two gateways, target; all with a journal, not started; the sender and the target."""
    settings = {"journal": journal}
    east = net.add("east", forwarding=True, settings=settings)
    west = net.add("west", forwarding=True, settings=settings)
    orders = net.add("orders", databases=["orders"], settings=settings)
    billing = net.add("billing", databases=["billing"], settings=settings)
    for name, own, to, address in (
        ("orders", ORDERS, BILLING, east.address),
        ("billing", BILLING, ORDERS, west.address),
    ):
        queue = f"CREATE QUEUE Inbox; CREATE SERVICE [{own}] ON QUEUE Inbox;\n"
        net.script(name, name, queue + route("out", to, address))
    net.script("east", "msdb", route("ToWest", BILLING, west.address) + route("Home", ORDERS, orders.address))
    net.script("west", "msdb", route("ToBilling", BILLING, billing.address) + route("Back", ORDERS, east.address))
    return orders, billing


def send(orders: Daemon, dialogs: int, messages: int) -> None:
    with contextlib.closing(orders.connect("orders")) as db, db:
        for _ in range(dialogs):
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
            for number in range(messages):
                dialog.send(f"message {number}")


def receive(billing: Daemon, count: int) -> None:
    with contextlib.closing(billing.connect("billing")) as db:
        while count > 0:
            with db:
                got = broker.receive(db, queue="Inbox", top=100, wait=SECONDS)
            assert got, f"{count} did not come"
            count -= len(got)


def is_quiet(orders: Daemon) -> bool:
    """Whether everything sent is acknowledged."""
    return bool(orders.query("SELECT COUNT(*) AS n FROM sys.transmission_queue", "orders")[0]["n"] == 0)


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
    orders, billing = shop(net)
    net.start()
    send(orders, dialogs=3, messages=10)
    receive(billing, 30)
    wait_for(lambda: is_quiet(orders), seconds=SECONDS, what="all acknowledged")
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
    orders, billing = shop(net, {"directory": "flows", "sample": 0.3})
    net.start()
    send(orders, dialogs=40, messages=1)
    receive(billing, 40)
    wait_for(lambda: is_quiet(orders), seconds=SECONDS, what="all acknowledged")
    net.daemons["west"].admin.sql("DROP ROUTE ToBilling;")
    send(orders, dialogs=20, messages=1)
    wait_for(
        lambda: sum(net.daemons["west"].status()["forwarding"]["dropped"].values()) >= 20, seconds=SECONDS, what="drops"
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
    orders, billing = shop(net, {"directory": "flows", "file_age": "1s"})
    east = net.daemons["east"]
    net.start()
    send(orders, dialogs=1, messages=20)
    receive(billing, 20)
    wait_for(lambda: east.status()["journal"]["files"] > 0, seconds=SECONDS, what="a file")
    send(orders, dialogs=1, messages=20)
    receive(billing, 20)
    wait_for(lambda: east.status()["journal"]["pending"] > 0 or rows(east), seconds=SECONDS, what="records")

    east.kill()

    flows = east.directory / "flows"
    left = [path for path in flows.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert len(left) <= 1
    assert len(rows(east)) > 0  # each of its files can be read
    east.start()
    wait_for(lambda: not any(path.exists() for path in left), seconds=SECONDS, what="leftovers gone")


@pytest.mark.timeout(240)
def test_journal_that_cannot_be_written_costs_records_and_no_message(net: Topology) -> None:
    orders, billing = shop(net, {"directory": "flows", "file_age": "1s"})
    east = net.daemons["east"]
    net.start()
    flows = east.directory / "flows"
    wait_for(flows.exists, seconds=SECONDS, what="the directory")
    shutil.rmtree(flows)
    flows.write_text("a file stands in its place")

    send(orders, dialogs=1, messages=10)
    receive(billing, 10)
    wait_for(lambda: east.status()["journal"]["shed"] > 0, seconds=SECONDS, what="records lost and counted")
    assert "File exists" == east.status()["journal"]["problem"]
    flows.unlink()
    send(orders, dialogs=1, messages=10)
    receive(billing, 10)
    wait_for(lambda: not east.status()["journal"]["problem"], seconds=SECONDS, what="written again")

    wait_for(lambda: is_quiet(orders), seconds=SECONDS, what="all acknowledged")
    assert (0, {}) == tuple(east.status()["forwarding"][name] for name in ("unaccounted", "dropped"))
    assert 0 == east.stop()
    assert outcomes(east)["forwarded"] > 0
    assert 1 == east.log.read_text().count("journal cannot be written")


def test_figures_of_a_journal_are_measured() -> None:
    measured = measure([Scenario(64, destinations=50)], repeats=1, flood_seconds=0.02)

    subjects = [row.subject for row in measured]
    assert ["no journal", "another without", "journal, 1 %", "journal, every message"] == subjects
    assert {True} == {row.values["messages_s"] > 0 for row in measured}
    assert 0.0 == measured[0].values["shed_share"]
