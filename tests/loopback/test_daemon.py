"""Real daemons as processes on loopback: what an operator and an application see of a whole instance."""

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import broker
from broker.forwarding.kernels import KERNELS
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Hello, LinkMessage, Probe, ProbeReply, decode_link, encode_link
from examples.demo.topology import Daemon, Topology, wait_for

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SECONDS = 30.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def service(name: str) -> str:
    return f"CREATE QUEUE Inbox; CREATE SERVICE [{name}] ON QUEUE Inbox;\n"


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def shop(net: Topology, *, settings: dict[str, dict[str, Any]] | None = None) -> tuple[Daemon, Daemon, Daemon]:
    """An initiator, a gateway and a target, with routes there and back."""
    gateway = net.add("gateway", forwarding=True, settings=settings)
    orders = net.add("orders", databases=["orders"])
    billing = net.add("billing", databases=["billing"])
    net.script("gateway", "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, orders.address))
    net.script("orders", "orders", service(ORDERS) + route("to", BILLING, gateway.address))
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, gateway.address))
    return gateway, orders, billing


def send(daemon: Daemon, count: int) -> broker.Dialog:
    with daemon.connect("orders") as db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
        for number in range(count):
            dialog.send(str(number))
    db.close()
    return dialog


def receive(daemon: Daemon, database: str, count: int) -> list[str]:
    """Bodies of `count` messages, each batch in a transaction of its own."""
    bodies: list[str] = []
    db = daemon.connect(database)
    while len(bodies) < count:
        with db:
            messages = broker.receive(db, queue="Inbox", wait=SECONDS)
            bodies += [message.body.decode() for message in messages]
        assert messages, f"only {len(bodies)} of {count} came"
    db.close()
    return bodies


def get(daemon: Daemon, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.observe_port}{path}", timeout=10) as response:
        return str(response.read(), "utf-8")


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_request_and_its_answer_cross_a_gateway(net: Topology, loop: str) -> None:
    _, orders, billing = shop(net)
    for daemon in net.daemons.values():
        daemon.environ["BROKER_LOOP"] = loop
    net.start()

    send(orders, 3)
    db = billing.connect("billing")
    messages: list[broker.Message] = []
    while len(messages) < 3:
        with db:
            messages += broker.receive(db, queue="Inbox", wait=SECONDS)
    with db:
        messages[-1].dialog.send("thanks")
    db.close()

    assert ["0", "1", "2"] == [message.body.decode() for message in messages]
    assert ["thanks"] == receive(orders, "orders", 1)
    assert {loop} == {daemon.status()["loop"] for daemon in net.daemons.values()}


def test_the_target_is_fixed_by_its_first_answer(net: Topology) -> None:
    _, orders, billing = shop(net)
    net.start()

    send(orders, 1)
    receive(billing, "billing", 1)

    far = wait_for(
        lambda: [
            row["far_broker_instance"]
            for row in orders.query("SELECT far_broker_instance FROM sys.conversation_endpoints")
            if row["far_broker_instance"]
        ],
        seconds=SECONDS,
        what="far_broker_instance",
    )
    assert [billing.status()["databases"]["billing"]["broker_instance"]] == far


def test_messages_wait_while_the_target_is_down_and_the_queue_says_why(net: Topology) -> None:
    _, orders, billing = shop(net)
    for daemon in (net.daemons["gateway"], orders):
        daemon.start()

    send(orders, 5)
    rows = wait_for(
        lambda: orders.query("SELECT to_service_name, transmission_status FROM sys.transmission_queue"),
        seconds=SECONDS,
        what="rows of the transmission queue",
    )
    assert {BILLING} == {row["to_service_name"] for row in rows}
    assert all(row["transmission_status"].strip() for row in rows)

    billing.start()
    assert [str(number) for number in range(5)] == receive(billing, "billing", 5)


def test_a_missing_route_delays_and_a_new_one_frees_at_once(net: Topology) -> None:
    gateway, orders, billing = shop(net)
    net.script("orders", "orders", service(ORDERS) + "DROP ROUTE AutoCreatedLocal;\n")
    net.start()
    send(orders, 2)
    wait_for(
        lambda: "route" in str(orders.query("SELECT transmission_status FROM sys.transmission_queue")),
        seconds=SECONDS,
        what="a status that names the route",
    )

    orders.admin.sql(route("late", BILLING, gateway.address), "orders")

    assert ["0", "1"] == receive(billing, "billing", 2)


def test_answers_come_back_over_the_connection_that_the_initiator_opened(net: Topology) -> None:
    """The gateway could never reach the initiator: its address resolves to nothing."""
    unreachable = "tcp://initiator.invalid:4022"
    gateway = net.add("gateway", forwarding=True)
    orders = net.add("orders", databases=["orders"], settings={"endpoint": {"listen": [], "advertise": [unreachable]}})
    billing = net.add("billing", databases=["billing"])
    net.script("gateway", "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, unreachable))
    net.script("orders", "orders", service(ORDERS) + route("to", BILLING, gateway.address))
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, gateway.address))
    net.start()

    send(orders, 1)
    db = billing.connect("billing")
    with db:
        broker.receive(db, queue="Inbox", wait=SECONDS)[0].dialog.send("answer")
    db.close()

    assert ["answer"] == receive(orders, "orders", 1)


@pytest.mark.parametrize("victim", ["gateway", "orders", "billing"])
def test_everything_arrives_once_and_in_order_when_a_process_is_killed(net: Topology, victim: str) -> None:
    shop(net)
    net.start()
    orders, billing = net.daemons["orders"], net.daemons["billing"]

    send(orders, 400)
    first = receive(billing, "billing", 1)
    net.daemons[victim].kill()
    net.daemons[victim].start()
    rest = receive(billing, "billing", 400 - len(first))

    assert [str(number) for number in range(400)] == first + rest


def test_an_application_that_is_killed_in_its_transaction_sends_and_consumes_nothing(net: Topology) -> None:
    _, orders, billing = shop(net)
    net.start()
    script = (
        "import broker, os, signal, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1])\n"
        f"broker.begin_dialog(db, from_service='{ORDERS}', to_service='{BILLING}').send('never')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    killed = subprocess.run([sys.executable, "-c", script, orders.directory / "orders.db"], check=False)
    send(orders, 1)

    assert -signal.SIGKILL == killed.returncode
    assert ["0"] == receive(billing, "billing", 1)
    assert 0 == orders.status()["databases"]["orders"]["dropped"].get("duplicate", 0)


def test_a_message_of_many_fragments_arrives_whole(net: Topology) -> None:
    _, orders, billing = shop(net)
    net.start()
    body = bytes(range(256)) * 20_000

    with orders.connect("orders") as db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send(body)
    db.close()
    db = billing.connect("billing")
    with db:
        received = broker.receive(db, queue="Inbox", wait=SECONDS)[0].body
    db.close()

    assert body == received


def is_closed(daemon: Daemon) -> bool:
    return ["CD"] == [row["state"] for row in daemon.query("SELECT state FROM sys.conversation_endpoints")]


def test_a_dialog_closes_at_both_ends(net: Topology) -> None:
    _, orders, billing = shop(net)
    net.start()
    with orders.connect("orders") as db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send("last")
    db.close()

    for daemon, database in ((billing, "billing"), (orders, "orders")):
        db = daemon.connect(database)
        with db:
            for message in broker.receive(db, queue="Inbox", wait=SECONDS):
                message.dialog.end()
        db.close()

    for daemon in (orders, billing):
        wait_for(partial(is_closed, daemon), seconds=SECONDS, what=f"the dialog closed at {daemon.name}")
        assert [] == daemon.query("SELECT * FROM sys.transmission_queue")


STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "random bytes": bytes(range(255, 0, -1)),
    "a length below the prelude": bytes.fromhex("0000000701000000"),
    "an impossible length": bytes.fromhex("7fffffff01000000"),
    "an unknown link kind": bytes.fromhex("000000080f000000"),
    "a dialog frame before HELLO": bytes.fromhex("0000007410000010") + bytes(108),
    "a HELLO that is no map": bytes.fromhex("0000000901000000c0"),
    "a HELLO with bad UTF-8": bytes.fromhex("0000001101000000") + b"\x81\xa4name\xa2\xff\xfe",
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_gets_fatal_and_everybody_else_is_served(net: Topology, stranger: str) -> None:
    gateway, orders, billing = shop(net)
    net.start()
    send(orders, 1)
    receive(billing, "billing", 1)

    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as sock:
        sock.sendall(STRANGERS[stranger])
        answer = b""
        while data := sock.recv(65536):
            answer += data

    assert 0x01 == answer[4], "it says HELLO first"
    hello_bytes = int.from_bytes(answer[:4], "big")
    assert 0x08 == answer[hello_bytes + 4], "and FATAL last"
    send(orders, 1)
    assert ["0"] == receive(billing, "billing", 1)


def test_silence_half_a_frame_and_a_frame_that_never_ends_are_closed_in_time(net: Topology) -> None:
    gateway, orders, billing = shop(net, settings={"endpoint": {"handshake_timeout": "500ms"}})
    net.start()
    beginnings = [b"", bytes.fromhex("000000"), bytes.fromhex("000010000100") + b"x"]

    sockets = [socket.create_connection(("127.0.0.1", gateway.port), timeout=10) for _ in beginnings]
    for sock, beginning in zip(sockets, beginnings, strict=True):
        sock.sendall(beginning)
    endings = []
    for sock in sockets:
        answer = b""
        while data := sock.recv(65536):
            answer += data
        sock.close()
        endings.append(b"no HELLO within" in answer)

    assert [True, True, True] == endings
    send(orders, 1)
    assert ["0"] == receive(billing, "billing", 1)


def test_health_and_metrics_are_served(net: Topology) -> None:
    gateway, orders, billing = shop(net)
    net.start()
    send(orders, 7)
    receive(billing, "billing", 7)

    metrics = get(gateway, "/metrics")

    assert "ok" in get(gateway, "/livez")
    assert "ok" in get(gateway, "/readyz")
    forwarded = re.findall(r'^broker_messages_forwarded_total\{.*route="to".*\} (\S+)', metrics, re.MULTILINE)
    assert 7.0 == sum(map(float, forwarded))
    assert 'broker_ledger_unaccounted_messages{database=""} 0.0' in metrics
    assert 'broker_ledger_messages{database="billing",entry="sent"}' in get(billing, "/metrics")


def test_a_frame_shows_in_the_views_of_the_original(net: Topology) -> None:
    gateway, orders, billing = shop(net)
    net.start()
    send(orders, 1)
    receive(billing, "billing", 1)

    routes = gateway.query("SELECT name, remote_service_name FROM msdb.sys.routes ORDER BY name")
    connections = gateway.query("SELECT state_desc, is_accept FROM sys.dm_broker_connections")

    assert [
        {"name": "AutoCreatedLocal", "remote_service_name": None},
        {"name": "back", "remote_service_name": ORDERS},
        {"name": "to", "remote_service_name": BILLING},
    ] == routes
    assert {"LOGGED_IN"} == {row["state_desc"] for row in connections}


def test_a_held_frame_shows_in_the_view_of_forwarded_messages(net: Topology) -> None:
    gateway, orders, _ = shop(net)
    for daemon in (gateway, orders):
        daemon.start()
    send(orders, 1)

    row = wait_for(
        lambda: gateway.query("SELECT * FROM sys.dm_broker_forwarded_messages"), seconds=SECONDS, what="a held frame"
    )[0]

    assert (BILLING, ORDERS, 0) == (row["to_service_name"], row["from_service_name"], row["message_sequence_number"])


def test_sigterm_ends_an_instance_cleanly_and_its_state_stays(net: Topology) -> None:
    _, orders, _ = shop(net)
    orders.start()
    send(orders, 3)

    assert 0 == orders.stop()

    orders.start()
    assert 3 == len(orders.query("SELECT * FROM sys.transmission_queue"))


def test_a_taken_port_and_a_locked_store_exit_75(net: Topology) -> None:
    gateway = net.add("gateway", forwarding=True)
    same_port = net.add("same-port", settings={"endpoint": {"listen": [f"127.0.0.1:{gateway.port}"]}})
    same_store = net.add("same-store", settings={"instance": {"state_dir": str(gateway.directory)}})
    gateway.start()

    ends = [
        subprocess.run([sys.executable, "-m", "broker", "serve", "-c", daemon.config], capture_output=True, check=False)
        for daemon in (same_port, same_store)
    ]

    assert [75, 75] == [end.returncode for end in ends]
    assert "cannot listen on" in ends[0].stderr.decode()
    assert "another daemon has it open" in ends[1].stderr.decode()


def test_a_bad_configuration_exits_78_and_names_every_mistake(net: Topology) -> None:
    gateway = net.add("gateway")
    gateway.config.write_text('[endpoint]\nlisten = "nowhere"\nmax_hopps = 3\n[observe]\nlog_level = "loud"\n')

    end = subprocess.run(
        [sys.executable, "-m", "broker", "serve", "-c", gateway.config], capture_output=True, check=False
    )

    assert 78 == end.returncode
    report = end.stderr.decode()
    for place in ("broker.toml:2:", "broker.toml:3:", "max_hops", "broker.toml:5:"):
        assert place in report


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_kernel_that_is_forced_is_the_one_that_walks(net: Topology, name: str) -> None:
    gateway = net.add("gateway", forwarding=True)
    gateway.environ["BROKER_KERNEL"] = name

    gateway.start()

    assert name == gateway.status()["kernel"]


def test_a_kernel_that_is_not_there_exits_78(net: Topology) -> None:
    gateway = net.add("gateway", forwarding=True)
    command = [sys.executable, "-m", "broker", "serve", "-c", str(gateway.config)]

    end = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"BROKER_KERNEL": "fast"})

    assert (78, "BROKER_KERNEL: 'fast' is not a kernel") == (
        end.returncode,
        end.stderr.decode().partition(";")[0][-38:],
    )


def test_a_bad_statement_changes_nothing_and_names_its_place(net: Topology) -> None:
    gateway = net.add("gateway")
    gateway.start()

    end = subprocess.run(
        [sys.executable, "-m", "broker", "sql", "-c", gateway.config, "-d", "msdb"],
        input="CREATE ROUTE good WITH ADDRESS = 'LOCAL';\nCREATE ROUTE bad WITH ADDRESS = 'udp://host';\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert 1 == end.returncode
    assert "Msg 9744" in end.stderr
    assert ":2:" in end.stderr
    assert "^^^" in end.stderr
    assert ["AutoCreatedLocal"] == [row["name"] for row in gateway.query("SELECT name FROM msdb.sys.routes")]


def test_get_never_changes_anything_and_an_unknown_path_is_a_problem(net: Topology) -> None:
    gateway = net.add("gateway")
    gateway.start()

    with pytest.raises(urllib.error.HTTPError) as problem:
        get(gateway, "/nothing")

    assert 404 == problem.value.code
    problem.value.close()


def test_commands_send_and_receive_on_a_database_file(net: Topology) -> None:
    _, orders, billing = shop(net)
    net.start()
    command = [sys.executable, "-m", "broker"]

    handle = subprocess.run(
        [*command, "send", "-d", orders.directory / "orders.db", "--from", ORDERS, "--to", BILLING, "hello"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    printed = subprocess.run(
        [*command, "receive", "-d", billing.directory / "billing.db", "--queue", "Inbox", "--wait", "30", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert ["hello"] == [row["message_body"] for row in json.loads(printed)]
    db = sqlite3.connect(orders.directory / "orders.db")
    assert handle == str(broker.get_dialog(db, handle).conversation_handle)
    db.close()


def test_a_probe_is_answered_for_what_is_hosted_here_and_for_what_is_not(net: Topology) -> None:
    """The answering side of a mirrored route elsewhere: `principal` of its own databases, `unknown` of all others."""
    billing = net.add("billing", databases=["billing"])
    billing.start()
    hosted = uuid.UUID(billing.status()["databases"]["billing"]["broker_instance"]).bytes
    decoder = FrameDecoder(1 << 20)
    replies: list[LinkMessage] = []

    with socket.create_connection(("127.0.0.1", billing.port), timeout=10) as sock:
        sock.sendall(encode_link(Hello(arbitration=b"a" * 16)))
        sock.sendall(encode_link(Probe(id=1, service=BILLING, broker_instance=hosted)))
        sock.sendall(encode_link(Probe(id=2, service=BILLING, broker_instance=b"x" * 16)))
        while len(replies) < 3:
            replies += [decode_link(frame) for frame in decoder.feed(sock.recv(65536))]

    assert [
        ProbeReply(id=1, broker_instance=hosted, role="principal"),
        ProbeReply(id=2, broker_instance=b"x" * 16, role="unknown"),
    ] == replies[1:]


def test_frames_that_nobody_finishes_take_bounded_memory_and_disturb_nobody(net: Topology) -> None:
    gateway, orders, billing = shop(net)
    net.start()
    hello = encode_link(Hello())
    beginning = (1 << 20).to_bytes(4, "big") + bytes.fromhex("10000010") + bytes((1 << 20) - 100)
    before = psutil.Process(gateway.pid).memory_info().rss

    sockets = [socket.create_connection(("127.0.0.1", gateway.port), timeout=10) for _ in range(80)]
    for sock in sockets:
        with contextlib.suppress(ConnectionError):
            sock.sendall(hello + beginning)
    after = psutil.Process(gateway.pid).memory_info().rss
    send(orders, 1)
    received = receive(billing, "billing", 1)
    for sock in sockets:
        sock.close()

    assert ["0"] == received
    assert after - before < 64 * 2**20
