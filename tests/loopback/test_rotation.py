"""Certificate files that change under real daemons: what is shown and trusted from then on, and what is told."""

import contextlib
import hashlib
import re
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from examples.demo.topology import Topology, wait_for
from tests.support.certificates import DAY, Pair, authority, make, stranger
from tests.support.loopback import get

SECONDS = 30.0
PAUSE = 0.1  # before each connection: the log leaves out lines about peers beyond ten a second


class Gateway:
    """A gateway that authenticates, and its files."""

    def __init__(self, net: Topology, directory: Path, **endpoint: Any) -> None:
        self.ca = authority()
        self.directory = directory
        self.write(make("first", "127.0.0.1", by=self.ca))
        self.trust(self.ca)
        settings = {
            "encryption": "required",
            "authentication": "certificate",
            "certificate": str(directory / "own.pem"),
            "private_key": str(directory / "own.key"),
            "trust": [str(directory / "trust.pem")],
        }
        self.daemon = net.add("gateway", forwarding=True, settings={"endpoint": settings | endpoint})
        self.daemon.start()

    def write(self, pair: Pair) -> None:
        pair.store(self.directory, "own")

    def trust(self, *pairs: Pair) -> None:
        """As tools do it: another file, put in the place of the old one."""
        new = self.directory / "trust.new"
        new.write_bytes(b"".join(one.pem for one in pairs))
        new.replace(self.directory / "trust.pem")

    def status(self) -> dict[str, Any]:
        transport: dict[str, Any] = self.daemon.status()["transport"]
        return transport

    def metric(self, beginning: str) -> float:
        """The value of the one metric whose line begins so, as a scraper sees it."""
        [line] = [one for one in get(self.daemon, "/metrics").splitlines() if one.startswith(beginning)]
        return float(line.split()[-1])


class Client:
    """Who connects with a certificate of its own."""

    def __init__(self, directory: Path, pair: Pair, port: int) -> None:
        self._port = port
        self._context = stranger(pair.store(directory, "client"))

    def connect(self) -> ssl.SSLSocket:
        time.sleep(PAUSE)
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS)
        return self._context.wrap_socket(sock)

    def is_heard(self) -> bool:
        """Whether the gateway says HELLO to it."""
        with contextlib.suppress(OSError), self.connect() as tls:
            return bool(tls.recv(1))
        return False

    def shown(self) -> str:
        """The fingerprint of what the gateway shows."""
        with self.connect() as tls:
            return hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()


@pytest.mark.promise("Routes or settings are changed in operation", "A certificate expires")
def test_files_that_change_are_used_within_seconds_and_those_that_cannot_be_used_change_nothing(
    net: Topology, tmp_path: Path
) -> None:
    gateway = Gateway(net, tmp_path)
    client = Client(tmp_path, make("client", "127.0.0.1", by=gateway.ca), gateway.daemon.port)
    before = client.shown()

    (tmp_path / "own.pem").write_text("-----BEGIN CERTIFICATE-----\nhalf of one")
    problem = wait_for(lambda: gateway.status()["problem"], seconds=SECONDS, what="an alarm")
    assert "endpoint.certificate" in problem
    assert (before, True) == (client.shown(), client.is_heard())
    assert any("certificate files are not in use" in warning for warning in gateway.status()["warnings"])
    assert (1, 0) == (
        gateway.metric("broker_tls_reload_failures_total"),
        gateway.metric("broker_tls_last_reload_successful"),
    )
    assert "[!] certificate files: endpoint.certificate" in get(gateway.daemon, "/readyz?verbose")  # and it is ready
    assert 1 == gateway.daemon.log.read_text().count("certificates not loaded, those before stay")

    soon = make("soon", "127.0.0.1", by=gateway.ca, ends=7 * DAY)
    gateway.write(soon)
    wait_for(lambda: client.shown() == soon.fingerprint, seconds=SECONDS, what="the renewed one")
    assert not gateway.status()["problem"]
    assert "CN=soon" in {one["name"] for one in gateway.status()["certificates"] if one["role"] == "own"}
    assert 1 == gateway.metric("broker_tls_reloads_total")
    rows = gateway.daemon.query("SELECT certificate_id FROM sys.service_broker_endpoints")
    assert [soon.fingerprint] == [row["certificate_id"] for row in rows]
    assert any("the certificate of this instance ends in 6 days" in one for one in gateway.status()["warnings"])
    expiry = gateway.metric('broker_tls_certificate_expiry_timestamp_seconds{name="CN=soon"')
    assert int(soon.certificate.not_valid_after_utc.timestamp()) == int(expiry)

    with client.connect() as staying:
        assert staying.recv(1)
        gateway.trust(authority("other CA"))
        with contextlib.suppress(OSError):
            while staying.recv(1 << 16):
                pass  # its end is what is waited for
    wait_for(lambda: not client.is_heard(), seconds=SECONDS, what="its being refused")
    assert ["CN=other CA"] == [one["name"] for one in gateway.status()["certificates"] if one["role"] == "trust"]
    untrusted = re.compile(r"the peer's certificate is (?:not|no longer) trusted")
    wait_for(lambda: untrusted.search(gateway.daemon.log.read_text()), seconds=SECONDS, what="the line of the log")
