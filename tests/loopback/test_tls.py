"""
Links over TLS on real sockets: who speaks it with whom, who is trusted, and what becomes of those who break it.

With TLS 1.3 who dials believes in the connection before the other side has judged its certificate; so what is wrong
with it is in the log of who judged, and reaches the one who dialled as an alert, which it tells as a sentence.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.net.tls import NO_SECURITY, Encryption, Security
from broker.protocol.frame import Fatal
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from tests.support.certificates import DAY, SERVER_ONLY, Pair, authority, make, security, stranger
from tests.support.loopback import Instance, instance, message, raw, until

pytestmark = pytest.mark.usefixtures("guard")

LOOPBACK = ("127.0.0.1", "localhost")
DISABLED, SUPPORTED, REQUIRED = Encryption.DISABLED, Encryption.SUPPORTED, Encryption.REQUIRED


@dataclass(frozen=True)
class Sides:
    """Endpoints with certificates of one CA; those with other names have others."""

    directory: Path
    ca: Pair
    here: Pair

    def of(self, pair: Pair, *trusted: Pair, encryption: Encryption = REQUIRED) -> Security:
        if encryption is DISABLED:
            return NO_SECURITY
        return security(self.directory, os.urandom(4).hex(), pair, *trusted, encryption=encryption)

    def good(self, name: str = "") -> Security:
        """Trusts the CA, and is trusted by it."""
        return self.of(make(name, *LOOPBACK, by=self.ca) if name else self.here, self.ca)

    def asking_nobody(self, encryption: Encryption = REQUIRED) -> Security:
        """Wants no certificate of a peer."""
        return self.of(self.here, encryption=encryption)

    def bad(self, pair: Pair) -> Security:
        """An endpoint that is good but for its certificate, which nobody could load today."""
        found = self.good("bad")
        certificate, key = pair.store(self.directory, "worse")
        for context in (found.server, found.client):
            assert context is not None
            context.load_cert_chain(certificate, key)
        return found


@pytest.fixture(scope="module")
def ca() -> Pair:
    return authority()


@pytest.fixture(scope="module")
def here(ca: Pair) -> Pair:
    return make("here", *LOOPBACK, by=ca)


@pytest.fixture
def sides(tmp_path: Path, ca: Pair, here: Pair) -> Sides:
    return Sides(tmp_path, ca, here)


def reasons(logs: list[Any]) -> str:
    return "\n".join(str(entry.get("reason", "")) for entry in logs)


def in_short(reason: str) -> str:
    """The reason with labels of certificates that have only their names."""
    return re.sub(r", \d{4}-\d\d-\d\d \d\d:\d\d to [^,]* UTC, sha256:[0-9a-f]{16}", "", reason)


def identities(one: Instance) -> list[Any]:
    """The fingerprints of those at the other ends of its links."""
    found = [link.transport.identity for link in one.peers.links.values()]
    return [identity and identity.fingerprint for identity in found]


async def connected(near: Instance, far: Instance) -> None:
    """Dial, and be at both ends."""
    near.peers.request_link(far.address)
    await until(
        lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED and "LOGGED_IN" in far.states()
    )


async def refused(near: Instance, address: NetworkAddress) -> str:
    """Dial in vain: the problem that is told."""
    near.peers.request_link(address)
    await until(lambda: near.peers.table.problem_of(address))
    assert AddressHealth.CONNECTED is not near.peers.table.health_of(address)
    return near.peers.table.problem_of(address)


@asynccontextmanager
async def tls_raw(address: NetworkAddress, context: ssl.SSLContext) -> AsyncIterator[Any]:
    """A neighbour that speaks TLS by itself."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


# --- who speaks TLS with whom ---


@pytest.mark.parametrize(
    ("dialling", "listening", "expected"),
    [
        (DISABLED, SUPPORTED, False),
        (DISABLED, REQUIRED, None),
        (SUPPORTED, DISABLED, False),
        (SUPPORTED, SUPPORTED, True),
        (SUPPORTED, REQUIRED, True),
        (REQUIRED, DISABLED, None),
        (REQUIRED, SUPPORTED, True),
        (REQUIRED, REQUIRED, True),
    ],
)
async def test_each_pair_of_settings_speaks_tls_plain_text_or_nothing(
    dialling: Encryption, listening: Encryption, *, expected: bool | None, sides: Sides
) -> None:
    async with (
        instance(security=sides.asking_nobody(listening)) as far,
        instance(security=sides.asking_nobody(dialling)) as near,
    ):
        if expected is None:
            await refused(near, far.address)
        else:
            await connected(near, far)

        assert ({expected} if expected is not None else set()) == {
            bool(link.transport.cipher) for link in near.peers.links.values() if link.agreement
        }


async def test_plain_answer_is_remembered_for_a_while(sides: Sides, logs: list[Any]) -> None:
    async with instance() as far, instance(security=sides.asking_nobody(SUPPORTED)) as near:
        await connected(near, far)
        for link in list(near.peers.links.values()):
            link.close("the test")
        await connected(near, far)

    assert 1 == [entry["event"] for entry in logs].count("peer has no TLS, dialling in plain text")


async def test_tls_that_is_turned_on_in_operation_carries_frames_and_ends_plain_dials(sides: Sides) -> None:
    async with instance() as far, instance(security=sides.asking_nobody(SUPPORTED)) as near:
        await connected(near, far)  # in plain text, which is remembered

        for one, name in ((near, "near"), (far, "far")):
            one.peers.handshaker.secure(sides.good(name), one.peers.links.values())
        await until(lambda: not near.peers.links and not far.peers.links)
        await connected(near, far)
        near.peers.table.link_for(far.address).send_control(message("//here"))  # type: ignore[union-attr]

        await until(lambda: far.delivered)
        assert {True} == {bool(link.transport.cipher) for link in near.peers.links.values()}


async def test_connection_that_waits_while_tls_is_turned_off_is_plain_or_refused(sides: Sides) -> None:
    async with (
        instance(security=sides.good()) as far,
        raw(far.address) as plain,
        raw(far.address) as encrypted,
    ):
        await until(lambda: len(far.peers.handshaker.handshakes) == 2)
        far.peers.handshaker.secure(NO_SECURITY, [])
        await encrypted.say(b"\x16\x03\x01")
        await plain.greet()

        await until(lambda: far.peers.protocol_errors["TlsRefusedError"] and far.states() == ["LOGGED_IN"])


# --- who is trusted ---

Make = Callable[[Sides], Pair]
WRONG: dict[str, tuple[Make, str, str]] = {
    "a CA that nobody trusts": (
        lambda _: make("bad", *LOOPBACK, by=authority("another CA")),
        "the peer's certificate is not trusted (CN=bad), ",
        "the peer does not trust this instance's certificate (CN=bad): add it to peers there, or its CA to trust",
    ),
    "expired": (
        lambda sides: make("bad", *LOOPBACK, by=sides.ca, ends=timedelta(seconds=-1)),
        "the peer's certificate has expired (CN=bad): it has to be renewed there",
        "this instance's certificate has expired (CN=bad): renew endpoint.certificate",
    ),
    "not valid yet": (
        lambda sides: make("bad", *LOOPBACK, by=sides.ca, begins=DAY / 2),
        "the peer's certificate is not valid yet (CN=bad): compare the clocks of both machines",
        "the peer refuses this instance's certificate (CN=bad): see its log",
    ),
}
SERVERS = {"for servers only": (lambda sides: make("bad", *LOOPBACK, by=sides.ca, uses=SERVER_ONLY), "clientAuth", "")}


@pytest.mark.parametrize(("make_pair", "ours", "theirs"), (WRONG | SERVERS).values(), ids=WRONG | SERVERS)
async def test_dialler_with_a_wrong_certificate_is_refused_and_told(
    make_pair: Make, ours: str, theirs: str, sides: Sides, logs: list[Any]
) -> None:
    async with instance(security=sides.good()) as far, instance(security=sides.bad(make_pair(sides))) as near:
        assert theirs in in_short(await refused(near, far.address))
        await until(lambda: far.peers.protocol_errors["TlsRefusedError"])
        assert not any(link.agreement for link in far.peers.links.values())
        (_, reason) = next(iter(far.peers.handshaker.refused))
        assert ours in in_short(reason)
    assert ours in in_short(reasons([entry for entry in logs if entry["event"] == "connection refused"]))


@pytest.mark.parametrize(("make_pair", "ours", "theirs"), WRONG.values(), ids=WRONG)
async def test_listener_with_a_wrong_certificate_is_refused_and_told(
    make_pair: Make, ours: str, theirs: str, sides: Sides, logs: list[Any]
) -> None:
    async with instance(security=sides.bad(make_pair(sides))) as far, instance(security=sides.good()) as near:
        assert ours in in_short(await refused(near, far.address))
        await until(lambda: far.peers.protocol_errors["TlsRefusedError"])
    assert theirs in in_short(reasons(logs))


async def test_instance_that_asks_for_no_certificate_shows_its_own(sides: Sides) -> None:
    async with instance(security=sides.good()) as far, instance(security=sides.asking_nobody()) as near:
        await connected(near, far)

        assert ([sides.here.fingerprint], [None]) == (identities(far), identities(near))


async def test_certificate_for_another_host_is_refused_by_who_dials(sides: Sides, logs: list[Any]) -> None:
    elsewhere = sides.of(make("elsewhere", "gateway.example", by=sides.ca), sides.ca)
    async with instance(security=elsewhere) as far, instance(security=sides.good()) as near:
        told = "the certificate of CN=elsewhere is for gateway.example and not for 127.0.0.1"
        assert told in await refused(near, far.address)
        await until(lambda: any(one["event"] == "peer ended the link" and told in one["reason"] for one in logs))


async def test_exact_certificate_is_trusted_whatever_it_is_called(sides: Sides) -> None:
    one, other = make("one"), make("other")
    async with instance(security=sides.of(one, other)) as far, instance(security=sides.of(other, one)) as near:
        await connected(near, far)

        assert [other.fingerprint] == identities(far)


@pytest.mark.parametrize("dials", ["forger", "victim"])
async def test_certificate_that_a_peer_has_issued_is_refused_whoever_dials(
    dials: str, tmp_path: Path, logs: list[Any]
) -> None:
    """The peer's own certificate says CA:TRUE, so OpenSSL takes it for an authority."""
    peer, victim = make("peer", *LOOPBACK, is_authority=True), make("victim", *LOOPBACK)
    forged = make("billing", *LOOPBACK, by=peer)
    async with (
        instance(security=security(tmp_path, "victim", victim, peers=[peer])) as one,
        instance(security=security(tmp_path, "forger", forged, peers=[victim])) as forger,
        instance(security=security(tmp_path, "peer", peer, peers=[victim])) as honest,
    ):
        near, far = (forger, one) if dials == "forger" else (one, forger)
        near.peers.request_link(far.address)
        honest.peers.request_link(one.address)
        await until(lambda: one.peers.protocol_errors and one.states() == ["LOGGED_IN"])

        assert [peer.fingerprint] == identities(one)
    refusals = [entry["reason"] for entry in logs if entry["event"] == "connection refused"]
    assert "(CN=billing) was issued by CN=peer, which is trusted as a peer's own certificate" in refusals[0]


@pytest.mark.parametrize("is_covered", [True, False])
async def test_inbound_link_stands_in_for_an_address_only_if_its_certificate_covers_it(
    *, is_covered: bool, sides: Sides
) -> None:
    guest = make("guest", *(LOOPBACK if is_covered else ("other.example",)), by=sides.ca)
    async with instance(security=sides.good()) as host, instance(security=sides.of(guest, sides.ca)) as near:
        await connected(near, host)

        health = host.peers.table.health_of(near.address)
        assert (AddressHealth.CONNECTED if is_covered else AddressHealth.UNTRIED) is health


async def test_neighbour_does_not_get_what_is_for_a_peer_of_the_same_host_that_is_down(sides: Sides) -> None:
    """It has its own certificate for this machine, and announces the address of the peer."""
    peer = sides.good("peer")
    async with (
        instance(security=sides.of(sides.here, sides.ca, encryption=SUPPORTED)) as near,
        raw(near.address, name="source") as source,
        instance(security=sides.good("neighbour"), service="//far") as other,
    ):
        async with instance(security=peer, service="//far") as far:
            near.route(far=far.address)
            await connected(near, far)
        other.peers.hello = msgspec.structs.replace(other.peers.hello, addresses=(str(far.address),))
        await connected(other, near)
        assert near.peers.table.health_of(far.address) is not AddressHealth.CONNECTED
        await source.say(message("//far"))
        await until(lambda: near.forwarder.pool.frames)
        async with instance(security=peer, service="//far", port=far.address.port) as successor:
            await until(lambda: successor.delivered)

        assert [] == other.delivered


# --- those who break it ---


async def test_plain_text_to_a_port_that_takes_tls_only_is_told_and_closed(sides: Sides, logs: list[Any]) -> None:
    async with instance(security=sides.asking_nobody()) as one, raw(one.address, name="raw") as peer:
        fatal = await peer.hear(Fatal)
        await peer.end()

        assert (28035, "this endpoint takes TLS only: set encryption") == (fatal.code, fatal.text)
        assert {"TlsRefusedError": 1} == one.peers.protocol_errors
    assert "the peer speaks plain text, and this endpoint takes TLS only" in reasons(logs)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x00\x05hello", "TLS failed"),
        (b"SSH-2.0-x\r\n", "does not speak TLS"),
        (b"", "before it said anything"),
        (stranger(), "shows no certificate"),
        (stranger(alpn="h2"), "(ALPN)"),
        (stranger(alpn=""), "(ALPN)"),
        (stranger(most=ssl.TLSVersion.TLSv1_2), "the peer does not speak TLS 1.3"),
    ],
    ids=["HTTP", "no TLS", "SSH", "silence", "no certificate", "HTTP/2", "no protocol", "TLS 1.2"],
)
async def test_stranger_at_a_port_with_tls_is_named_in_the_log(
    words: bytes | ssl.SSLContext, told: str, sides: Sides, logs: list[Any]
) -> None:
    security = sides.good() if told == "shows no certificate" else sides.asking_nobody()
    async with instance(security=security) as one:
        if isinstance(words, bytes):
            async with raw(one.address) as peer:
                await peer.say(words)
                peer._sock.shutdown(socket.SHUT_WR)
                await peer.end_of_bytes()
        else:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                async with tls_raw(one.address, words) as (reader, _):
                    await reader.readexactly(1)
        await until(lambda: one.peers.protocol_errors)
    assert told in reasons(logs)


async def test_handshake_that_takes_too_long_is_closed(sides: Sides, logs: list[Any]) -> None:
    async with (
        instance(security=sides.asking_nobody(), handshake=0.2) as one,
        raw(one.address) as silent,
        raw(one.address) as slow,
    ):
        await slow.say(b"\x16\x03")
        await silent.end()
        await slow.end()

    assert 2 == reasons(logs).count("not complete within 0.2 s")


# --- trust that is taken away ---


async def test_removed_ca_ends_open_links_tells_them_and_lets_nobody_in_again(sides: Sides, logs: list[Any]) -> None:
    other, pair = authority("other CA"), make("far", *LOOPBACK, by=sides.ca)
    guest = sides.of(make("guest", *LOOPBACK, by=other), sides.ca, other)
    async with (
        instance(security=sides.of(pair, sides.ca, other)) as far,
        instance(security=sides.good("near")) as near,
        instance(security=guest) as left,
    ):
        await connected(near, far)
        await connected(left, far)
        await until(lambda: ["LOGGED_IN", "LOGGED_IN"] == far.states())

        far.peers.handshaker.secure(sides.of(pair, sides.ca), far.peers.links.values())
        await until(lambda: left.peers.table.problem_of(far.address))

        assert "your certificate is no longer trusted" in left.peers.table.problem_of(far.address)
        assert AddressHealth.CONNECTED is near.peers.table.health_of(far.address)
        await until(lambda: ["LOGGED_IN"] == far.states())
        left.peers.request_link(far.address)
        await until(lambda: "does not trust this instance's" in left.peers.table.problem_of(far.address))
    assert "the peer's certificate is not trusted" in reasons(logs)


async def test_handshake_that_began_before_trust_was_taken_away_does_not_get_in(
    sides: Sides, tmp_path: Path, logs: list[Any]
) -> None:
    context = stranger(make("slow", *LOOPBACK, by=sides.ca).store(tmp_path, "slow"))
    async with instance(security=sides.good()) as far, raw(far.address) as peer:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        await peer.say(outgoing.read())
        while outgoing.pending == 0:
            incoming.write(await asyncio.get_running_loop().sock_recv(peer._sock, 1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()

        far.peers.handshaker.secure(sides.of(sides.here, authority("other CA")), [])
        await peer.say(outgoing.read())
        await until(lambda: far.peers.protocol_errors["TlsRefusedError"])

        assert [] == far.states()
    assert "the peer's certificate is no longer trusted" in reasons(logs)
