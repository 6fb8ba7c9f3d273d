"""`broker why` beside real daemons: each cause is named where it is, with what to do about it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import broker
from broker.store.sqlite.quarantine import Blame, note_failure
from broker.store.sqlite.transaction import writing
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run

ORDERS = "//shop/Orders"
SECONDS = 30.0
DEAD = "tcp://127.0.0.1:1"
BILLING_INSTANCE = str(uuid4())


def route(name: str, to: str, address: str, more: str = "") -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}'{more};\n"


class Shop:
    """An initiator, two gateways and a target."""

    def __init__(self, net: Topology) -> None:
        self.orders = net.add("orders", databases=["orders"])
        self.gateway = net.add("gateway", forwarding=True)
        small = {"endpoint": {"message_forward_size": "1MiB", "max_frame": "256KiB", "backpressure": "0s"}}
        self.small = net.add("small", forwarding=True, settings=small)
        self.narrow = net.add("narrow", forwarding=True, settings={"endpoint": {"max_hops": 1}})
        self.billing = net.add("billing", databases=["billing"], broker_instances={"billing": BILLING_INSTANCE})
        gateway, billing = self.gateway.address, self.billing.address
        net.script("orders", "orders", f"CREATE QUEUE Inbox; CREATE SERVICE [{ORDERS}] ON QUEUE Inbox;\n" + self._out())
        here = "".join(
            f"CREATE QUEUE {name}; CREATE SERVICE [//{name}] ON QUEUE {name};\n" for name in ("Read", "Shut", "far")
        )
        net.script("billing", "billing", here + route("back", ORDERS, gateway))
        net.script("billing", "msdb", route("on", "//closed", DEAD))
        ways = {
            "//Read": billing,
            "//Shut": billing,
            ORDERS: self.orders.address,
            "//refused": DEAD,
            "//far": self.narrow.address,
        }
        net.script(
            "gateway",
            "msdb",
            "DROP ROUTE AutoCreatedLocal;\n" + "".join(route(f"to {to}", to, at) for to, at in ways.items()),
        )
        net.script("small", "msdb", route("dead", "//full", DEAD))
        net.script("narrow", "msdb", route("far", "//far", billing))

    def _out(self) -> str:
        gateway = self.gateway.address
        ways = {
            **dict.fromkeys(("//Read", "//Shut", "//refused", "//lost", "//far"), gateway),
            "//dead": DEAD,
            "//closed": self.billing.address,
            "//full": self.small.address,
        }
        named = f", BROKER_INSTANCE = '{BILLING_INSTANCE}'"
        drop = "DROP ROUTE AutoCreatedLocal;\n"
        return (
            drop
            + "".join(route(to, to, at) for to, at in ways.items())
            + route("absent", "//absent", self.billing.address, named)
        )

    def send(self, to: str, body: bytes = b"x", *, times: int = 1, **more: Any) -> broker.Dialog:
        with closing(self.orders.connect("orders")) as db, db:
            if to == "//absent":
                more["broker_instance"] = UUID(BILLING_INSTANCE)
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=to, **more)
            for _ in range(times):
                dialog.send(body)
        return dialog

    def why(self, guid: object, first: Daemon | None = None) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.run(guid, "-o", "json", first=first).stdout)
        return told

    def run(self, guid: object, *more: str, first: Daemon | None = None) -> Any:
        daemons = (self.orders, self.gateway, self.small, self.narrow, self.billing)
        admin = [word for one in daemons for word in ("--admin", f"{one.address}={one.directory / 'admin.sock'}")]
        socket = (first or self.orders).directory / "admin.sock"
        return run("why", guid, "--socket", socket, *admin, *more)

    def until(self, guid: object, cause: str, first: Daemon | None = None, *, why: str = "") -> dict[str, Any]:
        """What is told as soon as it is this cause, and says this of it: now and then a next hop is just dialled."""
        told: dict[str, Any] = {}

        def is_told() -> bool:
            nonlocal told
            told = self.why(guid, first)
            return bool(told["cause"] == cause and why in told["why"])

        try:
            wait_for(is_told, seconds=SECONDS, what=cause)
        except broker.BrokerError:
            pytest.fail(f"not {cause!r} but {told['cause']!r} at {told['where']}: {told['why']}\n{told['findings']}")
        return told


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Topology(tmp_path_factory.mktemp("why")) as net:
        shop = Shop(net)
        net.start()
        yield shop


def arrived(shop: Shop, dialog: broker.Dialog) -> sqlite3.Row:
    """Wait until the target has a message of the dialog, and the sender knows: the row of the target's side."""

    def row() -> Any:
        with closing(shop.billing.connect("billing")) as db:
            query = (
                "SELECT c.endpoint_id, c.conversation_handle FROM broker_conversation c JOIN broker_message USING"
                " (endpoint_id) WHERE c.conversation_id = ?"
            )
            return db.execute(query, (dialog.conversation_id.bytes,)).fetchone()

    found: sqlite3.Row = wait_for(row, seconds=SECONDS, what="arrival")
    wait_for(lambda: not waiting(shop, dialog), seconds=SECONDS, what="acknowledgement")
    return found


def waiting(shop: Shop, dialog: broker.Dialog) -> int:
    """Messages of the dialog that are not acknowledged."""
    with closing(shop.orders.connect("orders")) as db:
        query = (
            "SELECT count(*) FROM broker_transmission JOIN broker_conversation USING (endpoint_id)"
            " WHERE conversation_id = ?"
        )
        return int(db.execute(query, (dialog.conversation_id.bytes,)).fetchone()[0])


def test_no_route(shop: Shop) -> None:
    told = shop.until(shop.send("//nowhere").conversation_handle, "no route")

    assert "orders, database orders" == told["where"]
    assert told["symptom"].startswith("1 message from //shop/Orders to //nowhere waits in orders, since 20")
    assert "no route" in told["why"]
    assert "in orders of orders: CREATE ROUTE [//nowhere] WITH SERVICE_NAME = '//nowhere'" in told["remedy"]
    assert "matched again when routes or services change" in told["next"]


def test_next_hop_refuses_connection(shop: Shop) -> None:
    refused = f"the next hop {DEAD} is not reached: Connection refused"

    told = shop.until(shop.send("//dead").conversation_handle, "next hop not reached", why=refused)

    assert "orders, database orders" == told["where"]
    assert f"start the instance at {DEAD}" in told["remedy"]
    assert any(DEAD in one for one in told["not_asked"])


def test_next_hop_has_no_route(shop: Shop) -> None:
    told = shop.until(shop.send("//lost").conversation_handle, "no route")

    assert "gateway" == told["where"]
    assert told["symptom"].startswith("1 message from //shop/Orders to //lost waits in orders")
    assert "in msdb of gateway: CREATE ROUTE [//lost]" in told["remedy"]


def test_next_hop_of_the_next_hop_refuses_connection(shop: Shop) -> None:
    told = shop.until(shop.send("//refused").conversation_handle, "held", why="Connection refused")

    assert "gateway" == told["where"]
    assert f"make {DEAD} reachable" in told["remedy"]


def test_a_frame_that_is_held_is_known_by_its_message_id(shop: Shop) -> None:
    dialog = shop.send("//refused")
    shop.until(dialog.conversation_id, "held")
    rows = shop.gateway.query("SELECT conversation_id, message_id FROM sys.dm_broker_forwarded_messages")
    [message] = [row["message_id"] for row in rows if UUID(row["conversation_id"]) == dialog.conversation_id][:1]

    told = shop.until(message, "next hop not reached", shop.gateway)

    assert ["gateway", "orders"] == [one["instance"] for one in told["answers"]]
    assert UUID(told["conversation_id"]) == dialog.conversation_id


def test_forwarding_disabled(shop: Shop) -> None:
    told = shop.until(shop.send("//closed").conversation_handle, "forwarding disabled")

    assert "billing" == told["where"]
    assert "set endpoint.message_forwarding = true at billing" in told["remedy"]


def test_pool_limit(shop: Shop) -> None:
    dialog = shop.send("//full", b"x" * 60_000, times=40)

    def is_refused() -> bool:
        found = [one["cause"] for one in shop.why(dialog.conversation_handle)["findings"]]
        return "pool limit exceeded" in found

    wait_for(is_refused, seconds=SECONDS, what="pool limit")
    told = shop.why(dialog.conversation_handle)
    [refusal, *_] = [one for one in told["findings"] if one["cause"] == "pool limit exceeded"]
    assert "raise endpoint.message_forward_size" in refusal["remedy"]
    assert ("held", "small") == (told["cause"], told["where"])


def test_hop_limit(shop: Shop) -> None:
    told = shop.until(shop.send("//far").conversation_handle, "hops exhausted")

    assert "narrow" == told["where"]
    assert "frames of any dialog were dropped here" in told["why"] or "1 frame of any dialog" in told["why"]
    assert "raise endpoint.max_hops of narrow" in told["remedy"]


def test_service_absent_at_the_target(shop: Shop) -> None:
    told = shop.until(shop.send("//absent").conversation_handle, "error -8490")

    assert "orders, database orders" == told["where"]
    assert "the dialog of //shop/Orders with //absent has failed with -8490" == told["symptom"]
    assert "CREATE SERVICE [//absent] in the database that the dialog or its route names" in told["remedy"]


def test_queue_off(shop: Shop) -> None:
    dialog = shop.send("//Shut")
    arrived(shop, dialog)
    shop.billing.admin.sql("ALTER QUEUE [Shut] WITH STATUS = OFF", "billing")

    told = shop.until(dialog.conversation_handle, "queue off")

    assert "billing, database billing" == told["where"]
    assert "1 message for //Shut waits in the queue Shut of billing" in told["symptom"]
    assert "ALTER QUEUE [Shut] WITH STATUS = ON in billing" in told["remedy"]


def test_quarantined(shop: Shop) -> None:
    dialog = shop.send("//Read")
    endpoint_id, handle = arrived(shop, dialog)
    with closing(shop.billing.connect("billing")) as db:
        db.isolation_level = None
        with writing(db):
            note_failure(db, Blame(endpoint_id, 0, "ValueError: no such customer"), now=time.time(), attempts=1)

    told = shop.until(dialog.conversation_handle, "in quarantine")

    assert "message 0 made its reader fail once" in told["why"]
    assert told["why"].endswith("ValueError: no such customer")
    assert f"broker quarantine resume -d billing {str(UUID(bytes=handle)).upper()}" in told["remedy"]


def test_lifetime_over(shop: Shop) -> None:
    told = shop.until(shop.send("//dead", lifetime=1).conversation_handle, "lifetime over")

    assert "the dialog of //shop/Orders with //dead has failed with -8489" == told["symptom"]
    assert "begin a new dialog and send again; make its lifetime longer" in told["remedy"]


def test_nobody_receives_then_everything_is_acknowledged_then_the_far_side_has_ended(shop: Shop) -> None:
    dialog = shop.send("//Read")

    arrived(shop, dialog)
    unread = shop.until(dialog.conversation_handle, "waiting for RECEIVE")
    with closing(shop.billing.connect("billing")) as db, db:
        handle = arrived(shop, dialog)[1]
        [message] = broker.receive(db, queue="Read", conversation=UUID(bytes=handle))
    read = shop.until(dialog.conversation_handle, "acknowledged")
    from_target = shop.until(UUID(bytes=handle), "acknowledged", shop.billing)
    with closing(shop.billing.connect("billing")) as db, db:
        broker.get_dialog(db, message.dialog.conversation_handle).end()
    shop.until(dialog.conversation_handle, "waiting for RECEIVE")
    with closing(shop.orders.connect("orders")) as db, db:
        broker.receive(db, queue="Inbox", top=100)
    ended = shop.until(dialog.conversation_handle, "far side ended")

    assert "1 message for //Read waits in the queue Read of billing" in unread["symptom"]
    assert "no reader runs on this queue" in unread["why"]
    assert "start the application that receives from Read" in unread["remedy"]
    assert "everything that //shop/Orders sent is acknowledged: 1 message" == read["symptom"]
    assert {"orders", "gateway", "billing"} == {one["instance"] for one in read["answers"]}
    assert {"orders", "billing"} <= {one["instance"] for one in from_target["answers"]}
    assert "//Read has ended the dialog, //shop/Orders has not" == ended["symptom"]
    assert "should RECEIVE the EndDialog message and END CONVERSATION" in ended["remedy"]


def test_an_unknown_id_is_told_with_where_it_was_looked_for(shop: Shop) -> None:
    done = shop.run(uuid4())

    assert 3 == done.exit_code
    assert "database orders" in done.stderr
    assert "frames that wait here" in done.stderr


def test_the_table_tells_symptom_cause_next_and_remedy_in_this_order(shop: Shop) -> None:
    dialog = shop.send("//lost")
    shop.until(dialog.conversation_handle, "no route")

    text = shop.run(dialog.conversation_handle).stdout

    places = [text.index(f"  {word}:") for word in ("symptom", "cause", "next", "remedy")]
    assert sorted(places) == places
    assert "gateway: no route" in text


def test_the_ledger_and_the_census_of_a_daemon_that_works(shop: Shop) -> None:
    dialog = shop.send("//nowhere")
    shop.until(dialog.conversation_handle, "no route")
    socket = shop.orders.directory / "admin.sock"

    status = run("status", "--socket", socket).stdout
    live = json.loads(run("dialogs", "census", "--socket", socket, "-o", "json").stdout)
    of_file = json.loads(run("dialogs", "census", "-d", shop.orders.directory / "orders.db", "-o", "json").stdout)

    assert "ledger of orders: " in status
    assert "UNACCOUNTED" not in status
    [groups] = [one["census"]["groups"] for one in live["databases"]]
    assert any(group["service_name"] == ORDERS and group["unsent"] for group in groups)
    assert groups == of_file["databases"][0]["census"]["groups"]


def test_a_waiting_message_never_has_a_blank_status(shop: Shop) -> None:
    for service in ("//nowhere", "//dead", "//lost"):
        shop.send(service)

    rows = shop.orders.query("SELECT transmission_status FROM sys.transmission_queue")

    assert len(rows) >= 3
    assert all(row["transmission_status"].strip() for row in rows)


def test_without_a_daemon_the_files_tell(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        orders = net.add("orders", databases=["orders"])
        net.script(
            "orders", "orders", f"DROP ROUTE AutoCreatedLocal; CREATE QUEUE Q; CREATE SERVICE [{ORDERS}] ON QUEUE Q;"
        )
        orders.start()
        with closing(orders.connect("orders")) as db, db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service="//nowhere")
            dialog.send("x")
        orders.stop()

        done = subprocess.run(
            [sys.executable, "-m", "broker", "why", "-c", str(orders.config), str(dialog.conversation_handle)],
            capture_output=True,
            text=True,
            check=True,
        )

    text = " ".join(done.stdout.split())
    assert "no daemon answers, so read from" in text
    assert "cause: orders, database orders:" in text
    assert "CREATE ROUTE [//nowhere]" in text
