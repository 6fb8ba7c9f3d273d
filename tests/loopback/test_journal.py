"""Real daemons write down what really happened, whatever ends them."""

from __future__ import annotations

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


@pytest.mark.timeout(240)
@pytest.mark.promise("The journal lacks records")
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
    assert len(lost) >= 20, "stale copies of the others may be among them"
    assert {"service not here"} == {row["reason"] for row in rows(net.daemons["west"]) if row["outcome"] == "dropped"}


@pytest.mark.timeout(240)
@pytest.mark.promise("The journal lacks records")
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
