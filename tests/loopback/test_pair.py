"""Two daemons that know nothing of each other, paired by one token: then their services talk, sealed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.paired import dialog_pair, settings_of

SECONDS = 90.0
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
CHECKS = {
    "token",
    "statements",
    "certificates",
    "endpoint",
    "identity",
    "route there",
    "route back",
    "permission",
    "binding",
    "sealed round trip",
}


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path / "net") as topology:
        yield topology


def add(net: Topology, name: str, service: str) -> Daemon:
    directory = net.directory / name
    daemon = net.add(name, databases=[name], settings=settings_of(name, directory))
    (directory / "scripts.d" / "services.sql").write_text(
        f"CREATE QUEUE Inbox; CREATE SERVICE [{service}] ON QUEUE Inbox;"
    )
    return daemon


def command(daemon: Daemon, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "broker", "pair", *words, "-c", str(daemon.config)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def invite(daemon: Daemon, service: str) -> tuple[subprocess.Popen[str], str]:
    """The command, and the token that it has printed."""
    inviting = command(daemon, "invite", "--service", service, "--address", daemon.address)
    assert inviting.stdout is not None
    token = inviting.stdout.readline().strip()
    assert token.startswith("broker-pair-"), inviting.communicate()
    return inviting, token


def paired(one: Daemon, other: Daemon) -> tuple[tuple[int, str], tuple[int, str]]:
    """Exit code and output of both commands: whoever invites, whoever accepts (JSON)."""
    inviting, token = invite(one, ORDERS)
    accepting = command(other, "accept", token, "--service", BILLING, "--address", other.address, "-o", "json")
    accepted, problem = accepting.communicate(timeout=SECONDS)
    invited, other_problem = inviting.communicate(timeout=SECONDS)
    return (inviting.returncode, invited + other_problem), (accepting.returncode, accepted or problem)


@pytest.mark.timeout(400)
def test_one_token_makes_two_instances_talk_sealed_and_for_good(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()

    (invited_code, invited), (accepted_code, accepted) = paired(orders, billing)

    assert (0, 0) == (invited_code, accepted_code), invited + accepted
    told = json.loads(accepted)
    assert told["is_paired"]
    assert CHECKS == {one["check"] for one in told["checks"]}
    assert {"orders", "billing"} == {one["instance"] for one in told["checks"] if one["check"] == "sealed round trip"}
    assert CHECKS == set(re.findall(r"^\[\+\] \w+: ([a-z ]+): ", invited, re.MULTILINE))
    for daemon in (orders, billing):
        assert [(daemon.name,)] == [
            (row["name"].rpartition("/")[2].lower(),)
            for row in daemon.query("SELECT name FROM sys.services", daemon.name)
        ]

    for daemon in (orders, billing):  # what was said holds after a restart as well
        daemon.stop()
        daemon.start()
    (code, again), _ = paired(orders, billing)
    assert 0 == code, again
    own = dialog_pair("billing", billing.directory).certificate
    before = own.read_bytes()
    renewed = subprocess.run(
        [sys.executable, "-m", "broker", "certs", "renew", str(own)], capture_output=True, check=False
    )
    assert (0, True) == (renewed.returncode, before != own.read_bytes()), renewed.stderr
    billing.stop()
    billing.start()  # with a new key, of which orders knows nothing: what is sealed to the old one is opened
    with closing(orders.connect("orders")) as db, db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
        dialog.send(b"an invoice")
    with closing(billing.connect("billing")) as db:

        def received() -> list[bytes]:
            with db:
                return [message.body for message in broker.receive(db, queue="Inbox", wait=1)]

        assert [b"an invoice"] == wait_for(received, seconds=SECONDS, what="the message")
        assert [("FULL", "CN=orders")] == db.execute(
            "SELECT security, far_principal FROM broker_session_key WHERE NOT is_initiator AND conversation_id = ?",
            (dialog.conversation_id.bytes,),
        ).fetchall()

    removing = command(billing, "remove", ORDERS, "--yes")
    said, problem = removing.communicate(timeout=SECONDS)
    assert 0 == removing.returncode, problem
    assert "said: DROP ROUTE" in said
    assert "said: REVOKE CONNECT ON ENDPOINT::[*] FROM [CN=orders];" in said

    def is_locked_out() -> bool:
        told = orders.query("SELECT peer_name FROM sys.dm_broker_connections WHERE state_desc = 'LOGGED_IN'", "orders")
        return not told

    wait_for(is_locked_out, seconds=SECONDS, what="the end of the connection")
    assert not list(billing.directory.rglob("zz-pair-*"))
    assert [] == billing.query("SELECT name FROM sys.remote_service_bindings", "billing")
    once_more = command(billing, "remove", ORDERS, "--yes")
    assert "billing is not paired with //shop/Orders" in once_more.communicate(timeout=SECONDS)[1]
    assert 3 == once_more.returncode


@pytest.mark.timeout(300)
def test_check_that_fails_is_told_on_both_sides_and_the_trial_leaves_nothing(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()
    billing.admin.sql("DENY SEND ON SERVICE::[*] TO [CN=orders]", "msdb")

    (invited_code, invited), (accepted_code, accepted) = paired(orders, billing)

    assert (1, 1) == (invited_code, accepted_code)
    bad = [(one["instance"], one["check"]) for one in json.loads(accepted)["checks"] if not one["is_good"]]
    assert [("billing", "statements")] == bad
    assert "[-] billing: statements: " in invited
    assert "not paired: once that is put right, begin again with a new token" in invited
    for daemon in (orders, billing):
        assert [] == daemon.query("SELECT name FROM sys.service_queues WHERE name LIKE 'pair-%'", daemon.name)


@pytest.mark.timeout(300)
def test_token_that_was_changed_gets_nothing_and_nothing_is_changed(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()
    inviting, token = invite(orders, ORDERS)

    accepting = command(billing, "accept", token[:-4], "--service", BILLING, "--address", billing.address)
    _, problem = accepting.communicate(timeout=SECONDS)

    assert 2 == accepting.returncode
    assert "the token is damaged" in " ".join(problem.split())
    inviting.terminate()
    _, last = inviting.communicate(timeout=SECONDS)
    assert (1, True) == (inviting.returncode, last.endswith("ended before it was done\n"))
    for daemon in (orders, billing):
        assert 1 == len(list((daemon.directory / "tls" / "peers").iterdir()))
        assert [] == daemon.query("SELECT name FROM sys.remote_service_bindings", daemon.name)
