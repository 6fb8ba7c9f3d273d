from __future__ import annotations

import pytest

from broker.config.values import ListenAddress, clash, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0:4022", "0.0.0.0", 4022),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        ("Gateway-A.example:4022", "gateway-a.example", 4022),
    ],
)
def test_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = parse_listen(text)

    assert (ListenAddress(host, port), text.lower()) == (address, str(address))


@pytest.mark.parametrize("text", ["", "4022", "h", "h:", "h:x", "h:65536", "h:-1", "h:4022 ", "h:٤"])
def test_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has no port"):
        parse_listen(text)


@pytest.mark.parametrize("text", [":4022", "*:4022", "::1:4022", "[::1:4022", "a b:1", "tcp://h:1", "1.2.3:1", "u@h:1"])
def test_address_without_a_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no host"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.8.9.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("example", False)],
)
def test_loopback_is_known(host: str, *, loopback: bool) -> None:
    assert loopback == ListenAddress(host, 1).is_loopback


@pytest.mark.parametrize(
    ("one", "other", "clashing"),
    [
        ("a:1", "a:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "0.0.0.0:1", True),
        ("0.0.0.0:1", "[::1]:1", False),
        ("0.0.0.0:1", "[::]:1", True),
        ("127.0.0.1:1", "[::]:1", True),
        ("a:1", "b:1", False),
        ("a:1", "a:2", False),
        ("a:0", "a:0", False),
    ],
)
def test_clash_of_two_listeners(one: str, other: str, *, clashing: bool) -> None:
    assert clashing == clash(parse_listen(one), parse_listen(other))
