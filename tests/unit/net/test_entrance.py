"""How a connected socket becomes a transport where nobody has TLS; the handshakes are tried over real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from broker.errors import TlsRefusedError
from broker.net.handshake import Handshaker, Opening, _check_host
from broker.net.tls import NO_SECURITY, identify
from broker.net.transport import PlainTransport
from broker.routing.address import NetworkAddress
from tests.support.certificates import make
from tests.support.played import PlayedLoop, PlayedSocket

FAR = NetworkAddress("far", 4022)


async def test_without_tls_an_accepted_socket_is_a_transport_at_once(loop: PlayedLoop) -> None:
    opened: list[Opening] = []
    sock: Any = PlayedSocket(loop)

    Handshaker(NO_SECURITY, 1.0, Counter(), opened.append).accept(sock, "tcp://peer:1")

    [opening] = opened
    assert ("tcp://peer:1", loop.time()) == (opening.address, opening.begun_at)
    assert isinstance(opening.transport, PlainTransport)
    assert (opening.transport, "tcp://peer:1") == opening.ends


async def test_without_tls_a_dialled_socket_is_a_transport_at_once(loop: PlayedLoop) -> None:
    sock: Any = PlayedSocket(loop)

    async def connect(address: NetworkAddress) -> Any:
        await asyncio.sleep(0)
        return sock, (address.host, address.port)

    opening = await Handshaker(NO_SECURITY, 1.0, Counter(), lambda _: None).dial(FAR, connect)

    assert ("tcp://far:4022", True) == (opening.address, isinstance(opening.transport, PlainTransport))


async def test_nobody_reached_is_what_the_system_said(loop: PlayedLoop) -> None:
    async def connect(_: NetworkAddress) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(ConnectionRefusedError):
        await Handshaker(NO_SECURITY, 1.0, Counter(), lambda _: None).dial(FAR, connect)


async def test_certificate_has_to_cover_the_host_unless_it_is_itself_trusted() -> None:
    pair = make("a", "a.example")

    _check_host(identify(pair.der), "a.example")
    _check_host(identify(pair.der, pinned=frozenset({pair.fingerprint})), "b.example")
    _check_host(None, "b.example")
    with pytest.raises(TlsRefusedError, match=r"\(CN=a\) is for a.example and not for b.example"):
        _check_host(identify(pair.der), "b.example")
    with pytest.raises(TlsRefusedError, match="is for no host"):
        _check_host(identify(make("a").der), "b.example")
