"""Two daemons that know nothing of each other, and a file from each: then their services talk, sealed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.partners import settings_of

SECONDS = 90.0
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"


def add(net: Topology, name: str, service: str) -> Daemon:
    directory = net.directory / name
    daemon = net.add(name, databases=[name], settings=settings_of(name, directory))
    (directory / "scripts.d" / "services.sql").write_text(
        f"CREATE QUEUE Inbox; CREATE SERVICE [{service}] ON QUEUE Inbox;"
    )
    return daemon


def command(daemon: Daemon, *words: str, data: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "broker", "partner", *words, "-c", str(daemon.config)]
    return subprocess.run(line, input=data, capture_output=True, text=True, timeout=SECONDS, check=False)


def exported(daemon: Daemon, service: str, far: str) -> str:
    done = command(daemon, "export", "--service", service, "--to", far, "--address", daemon.address)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def imported(daemon: Daemon, text: str) -> str:
    done = command(daemon, "import", "-", "--yes", data=text)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def answered(orders: Daemon, billing: Daemon) -> tuple[list[bytes], list[tuple[str, str]]]:
    """What came back from billing, and how the dialog was secured there."""
    with closing(orders.connect("orders")) as db, closing(billing.connect("billing")) as far:
        with db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING, encryption=True)
            dialog.send(b"an order")

        def answer() -> bool:
            with far:
                for message in broker.receive(far, queue="Inbox", wait=1):
                    message.dialog.send(b"an invoice")
                    return True
            return False

        def received() -> list[bytes]:
            with db:
                return [message.body for message in broker.receive(db, queue="Inbox", wait=1)]

        wait_for(answer, seconds=SECONDS, what="the message")
        secured = far.execute(
            "SELECT security, far_principal FROM broker_session_key WHERE NOT is_initiator AND conversation_id = ?",
            (dialog.conversation_id.bytes,),
        ).fetchall()
        return wait_for(received, seconds=SECONDS, what="the answer"), secured


@pytest.mark.timeout(400)
@pytest.mark.promise("Two partners cannot talk securely")
def test_a_file_from_each_makes_two_instances_talk_sealed_and_for_good(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()
    files = exported(orders, ORDERS, BILLING), exported(billing, BILLING, ORDERS)

    assert imported(orders, files[1]).endswith("done\n")
    assert imported(billing, files[0]).endswith("done\n")

    assert ([b"an invoice"], [("FULL", "CN=orders")]) == answered(orders, billing)
    for daemon in (orders, billing):  # what was said holds after a restart as well
        daemon.stop()
        daemon.start()
    assert imported(orders, exported(billing, BILLING, ORDERS)).endswith("nothing to change\n")
    assert ([b"an invoice"], [("FULL", "CN=orders")]) == answered(orders, billing)

    certificate = billing.directory / "tls" / "billing.pem"
    for how in (["--prepare"], []):  # the partner has the new certificate before it is used
        renew = [sys.executable, "-m", "broker", "certs", "renew", str(certificate), *how]
        subprocess.run(renew, check=True, capture_output=True)
        (billing.directory / "tls" / "peers" / "billing.pem").write_bytes(certificate.read_bytes())
        told = imported(orders, exported(billing, BILLING, ORDERS))
        assert f"replace {orders.directory}/tls/peers/partner-billing.pem" in told
        assert "GRANT" not in told
        assert "CREATE" not in told
    assert ([b"an invoice"], [("FULL", "CN=orders")]) == answered(orders, billing)


@pytest.mark.timeout(300)
@pytest.mark.promise("Two partners cannot talk securely")
def test_file_that_is_refused_changes_nothing(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()
    text = exported(orders, ORDERS, BILLING)
    billing.admin.sql("DENY SEND ON SERVICE::[*] TO [CN=orders]", "msdb")

    changed = command(billing, "import", "-", "--yes", data=text.replace(BILLING, "//shop/Payroll"))
    denied = command(billing, "import", "-", "--yes", data=text)

    assert (1, 1) == (changed.returncode, denied.returncode)
    assert "the file was changed, or is not whole" in changed.stderr
    assert "DENY SEND ON SERVICE::[*] TO [CN=orders] in msdb is about CN=orders; REVOKE it first" in denied.stderr
    assert [] == list(billing.directory.rglob("partner-*"))
    assert [] == billing.query("SELECT name FROM sys.remote_service_bindings", "billing")
