"""Two daemons that know nothing of each other, and a file from each: then their services talk, sealed."""

from contextlib import closing

import pytest

from examples.demo.topology import Daemon, Topology
from tests.support.command import run
from tests.support.loopback import BILLING, ORDERS, receive, send, service
from tests.support.partners import settings_of


def add(net: Topology, name: str, own: str) -> Daemon:
    directory = net.directory / name
    daemon = net.add(name, databases=[name], settings=settings_of(name, directory))
    (directory / "scripts.d" / "services.sql").write_text(service(own))
    return daemon


def exported(daemon: Daemon, service: str, far: str) -> str:
    words = ["--service", service, "--to", far, "--address", daemon.address]
    done = run("partner", "export", *words, "-c", daemon.config)
    assert 0 == done.exit_code, done.stderr
    return done.stdout


def imported(daemon: Daemon, text: str) -> str:
    done = run("partner", "import", "-", "--yes", "-c", daemon.config, stdin=text)
    assert 0 == done.exit_code, done.stderr
    return done.stdout


def answered(orders: Daemon, billing: Daemon) -> tuple[list[str], list[tuple[str, str]]]:
    """What came back from billing, and how the dialog was secured there."""
    dialog = send(orders, "an order", encryption=True)
    receive(billing, 1, answer="an invoice")
    query = "SELECT security, far_principal FROM broker_session_key WHERE NOT is_initiator AND conversation_id = ?"
    with closing(billing.connect("billing")) as far:
        secured = far.execute(query, (dialog.conversation_id.bytes,)).fetchall()
    return receive(orders, 1), secured


@pytest.mark.timeout(400)
@pytest.mark.promise("Two partners cannot talk securely")
def test_a_file_from_each_makes_two_instances_talk_sealed_and_for_good(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()
    files = exported(orders, ORDERS, BILLING), exported(billing, BILLING, ORDERS)

    assert imported(orders, files[1]).endswith("done\n")
    assert imported(billing, files[0]).endswith("done\n")

    assert (["an invoice"], [("FULL", "CN=orders")]) == answered(orders, billing)
    for daemon in (orders, billing):  # what was said holds after a restart as well
        daemon.stop()
        daemon.start()
    assert imported(orders, exported(billing, BILLING, ORDERS)).endswith("nothing to change\n")
    assert (["an invoice"], [("FULL", "CN=orders")]) == answered(orders, billing)

    certificate = billing.directory / "tls" / "billing.pem"
    for how in (["--prepare"], []):  # the partner has the new certificate before it is used
        assert 0 == run("certs", "renew", certificate, *how).exit_code
        (billing.directory / "tls" / "peers" / "billing.pem").write_bytes(certificate.read_bytes())
        told = imported(orders, exported(billing, BILLING, ORDERS))
        assert f"replace {orders.directory}/tls/peers/partner-billing.pem" in told
        assert "GRANT" not in told
        assert "CREATE" not in told
    assert (["an invoice"], [("FULL", "CN=orders")]) == answered(orders, billing)


@pytest.mark.timeout(300)
@pytest.mark.promise("Two partners cannot talk securely")
def test_file_that_is_refused_changes_nothing(net: Topology) -> None:
    orders, billing = add(net, "orders", ORDERS), add(net, "billing", BILLING)
    net.start()
    text = exported(orders, ORDERS, BILLING)
    billing.admin.sql("DENY SEND ON SERVICE::[*] TO [CN=orders]", "msdb")

    words = ["partner", "import", "-", "--yes", "-c", billing.config]
    changed, denied = (run(*words, stdin=told) for told in (text.replace(BILLING, "//shop/Payroll"), text))

    assert (1, 1) == (changed.exit_code, denied.exit_code)
    assert "the file was changed, or is not whole" in changed.stderr
    assert "DENY SEND ON SERVICE::[*] TO [CN=orders] in msdb is about CN=orders; REVOKE it first" in denied.stderr
    assert [] == list(billing.directory.rglob("partner-*"))
    assert [] == billing.query("SELECT name FROM sys.remote_service_bindings", "billing")
