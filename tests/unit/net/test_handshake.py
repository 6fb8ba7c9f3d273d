"""How a connected socket becomes a transport where nobody has TLS; the handshakes are tried over real sockets."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from broker.errors import TlsRefusedError
from broker.net.handshake import HOST_SHARE, Handshaker, Handshakes, _check_host
from broker.net.tls import NO_SECURITY, identify
from tests.support.certificates import make
from tests.support.played import PlayedLoop, PlayedSocket


async def test_certificate_has_to_cover_the_host_unless_it_is_itself_trusted() -> None:
    pair = make("a", "a.example")

    _check_host(identify(pair.certificate), "a.example", ())
    _check_host(identify(pair.certificate), "b.example", {pair.fingerprint})
    _check_host(None, "b.example", ())
    with pytest.raises(TlsRefusedError, match=r"of CN=a is for a.example and not for b.example") as caught:
        _check_host(identify(pair.certificate), "b.example", ())
    command = "broker certs issue a --host a.example --host b.example --ca DIRECTORY --out DIRECTORY --force"
    assert caught.value.problem.endswith(command)
    with pytest.raises(TlsRefusedError, match="is for no host"):
        _check_host(identify(make("a").certificate), "b.example", ())


async def test_a_refusal_by_certificates_that_have_changed_since_is_forgotten() -> None:
    shaker = Handshaker(NO_SECURITY, 1.0, Counter(), lambda _: None, Handshakes(1, lambda _: False))

    shaker.remember_refused("tcp://10.0.0.1:4022", "not trusted")
    assert ("10.0.0.1", "not trusted") in shaker.refused
    shaker.secure(NO_SECURITY, [])
    assert {} == shaker.refused


# --- handshakes ---


MOST = 2 * HOST_SHARE  # so that one host may have two
KNOWN = "10.0.0.9"


class Hall:
    """Handshakes that take forever; `ended` why some were, by name."""

    def __init__(self, loop: PlayedLoop) -> None:
        self.handshakes = Handshakes(MOST, lambda host: host == KNOWN)
        self.ended: dict[str, str] = {}
        self.sockets: dict[str, Any] = {}
        self._loop = loop

    async def begin(self, host: str, name: str = "") -> None:
        name = name or f"{host}#{len(self.sockets)}"
        self.sockets[name] = PlayedSocket(self._loop)
        self.handshakes.begin(self._shake(name), self.sockets[name], f"tcp://{host}:40000")
        for _ in range(3):
            await asyncio.sleep(0)

    async def _shake(self, name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            self.ended[name] = str(error)
            raise


@pytest.fixture
async def hall(loop: PlayedLoop) -> Any:
    hall = Hall(loop)
    yield hall
    await hall.handshakes.close()


async def test_longest_of_a_host_that_has_its_share_makes_room_for_its_next(hall: Hall) -> None:
    await hall.begin("10.0.0.2", "another host's")
    for name in ("first", "second", "third"):
        await hall.begin("10.0.0.1", name)

    assert {"first": "too many TLS handshakes at one time from this address"} == hall.ended
    assert (3, True) == (len(hall.handshakes), hall.sockets["first"].is_closed)


async def test_known_host_has_no_share_to_keep_to(hall: Hall) -> None:
    for _ in range(MOST):
        await hall.begin(KNOWN)

    assert ({}, MOST) == (hall.ended, len(hall.handshakes))


async def test_host_with_the_most_makes_room_when_there_are_too_many(hall: Hall) -> None:
    await hall.begin("10.1.0.1", "oldest")
    await hall.begin("10.1.0.2", "first of two")
    await hall.begin("10.1.0.2", "second of two")
    for number in range(MOST - 3):
        await hall.begin(f"10.2.0.{number}")

    await hall.begin("10.3.0.1")

    assert {"first of two": "too many TLS handshakes at one time"} == hall.ended


async def test_known_host_makes_room_only_when_there_is_nobody_else(hall: Hall) -> None:
    for number in range(MOST - 1):
        await hall.begin(KNOWN, f"known {number}")
    await hall.begin("10.1.0.1", "stranger")

    await hall.begin("10.1.0.2", "another stranger")
    await hall.begin(KNOWN, "one more known")
    await hall.begin(KNOWN, "and one more")

    assert ["stranger", "another stranger", "known 0"] == list(hall.ended)


async def test_end_ends_all(hall: Hall) -> None:
    for host in ("10.1.0.1", "10.1.0.2"):
        await hall.begin(host)

    await hall.handshakes.close()
    await asyncio.sleep(0)

    assert 0 == len(hall.handshakes)
    assert all(sock.is_closed for sock in hall.sockets.values())
