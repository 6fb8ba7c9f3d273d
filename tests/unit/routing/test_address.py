"""What counts as an address, and that every spelling of one becomes one value."""

import pytest

from broker.routing.address import (
    DEFAULT_PORT,
    LOCAL,
    TRANSPORT,
    Keyword,
    NetworkAddress,
    parse_address,
    transport_address,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://host:4022", NetworkAddress("host", 4022)),
        ("TCP://Host.Example.COM:4022", NetworkAddress("host.example.com", 4022)),
        ("TcP://host:1", NetworkAddress("host", 1)),
        ("tcp://host:65535", NetworkAddress("host", 65535)),
        ("tcp://host", NetworkAddress("host", DEFAULT_PORT)),
        ("tcp://host/", NetworkAddress("host", DEFAULT_PORT)),
        ("tcp://host:4022/", NetworkAddress("host", 4022)),
        ("tcp://host.example.", NetworkAddress("host.example.")),
        ("tcp://SQL_SERVER-01:4037", NetworkAddress("sql_server-01", 4037)),
        ("tcp://192.168.10.2:4022", NetworkAddress("192.168.10.2", 4022)),
        ("tcp://[2001:DB8:0::1]:4022", NetworkAddress("2001:db8::1", 4022)),
        ("tcp://[::1]", NetworkAddress("::1", DEFAULT_PORT)),
        ("LOCAL", LOCAL),
        ("local", LOCAL),
        ("Transport", TRANSPORT),
    ],
)
@pytest.mark.promise("routes 5")
def test_accepted_text_has_one_normal_form(text: str, expected: NetworkAddress | Keyword) -> None:
    assert expected == parse_address(text)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (NetworkAddress("host", 4022), "tcp://host:4022"),
        (NetworkAddress("host"), "tcp://host:4022"),
        (NetworkAddress("2001:db8::1", 9), "tcp://[2001:db8::1]:9"),
        (LOCAL, "LOCAL"),
        (TRANSPORT, "TRANSPORT"),
    ],
)
def test_text_of_an_address_is_its_normal_form(address: NetworkAddress | Keyword, expected: str) -> None:
    assert expected == str(address)
    assert address == parse_address(expected)


NEITHER = "neither tcp://host:port nor LOCAL nor TRANSPORT"
NO_HOST = "names no valid host"
NO_PORT = "has no valid port: a number from 1 to 65535"
NO_IPV6 = "no valid IPv6 address between its brackets"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", NEITHER),
        ("host:4022", NEITHER),
        ("tran\u017fport", NEITHER),  # a long s, whose capital is S
        ("tcp:///", "names no host"),
        ("tcp://:4022", "names no host"),
        ("LOCAL ", "contains a blank"),
        ("tcp://a host:4022", "contains a blank"),
        ("tcp://host:", NO_PORT),
        ("tcp://host:0", NO_PORT),
        ("tcp://host:65536", NO_PORT),
        ("tcp://host:٤٠٢٢", NO_PORT),
        ("tcp://[::1]:", NO_PORT),
        ("tcp://user@host:4022", "carries a user name"),
        ("tcp://host:4022?x=1", "carries a query"),
        ("tcp://host:4022#x", "carries a fragment"),
        ("tcp://host:4022//", "carries a path"),
        ("tcp://host..example", NO_HOST),
        ("tcp://-host", NO_HOST),
        ("tcp://\u212aiel", NO_HOST),  # a Kelvin sign, whose small letter is k
        ("tcp://" + "a" * 64, NO_HOST),
        ("tcp://" + ".".join(["a" * 60] * 5), NO_HOST),
        ("tcp://x[::1]:4022", NO_HOST),
        ("tcp://1.2.3.256", "no valid IPv4 address"),
        ("tcp://4022", "no valid IPv4 address"),
        ("tcp://[::1", "IPv6 address without brackets"),
        ("tcp://2001:db8::1", "IPv6 address without brackets"),
        ("tcp://[]", NO_IPV6),
        ("tcp://[fe80::1%eth0]:4022", NO_IPV6),
        ("tcp://[::1]4022", "goes on after the bracket"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str, problem: str) -> None:
    """More of them are tried with statements: tests/support/route_errors.py."""
    with pytest.raises(ValueError, match=r"^'") as caught:
        parse_address(text)

    assert problem in str(caught.value)
    assert str(caught.value).startswith(repr(text))


@pytest.mark.parametrize(
    ("service_name", "expected"),
    [
        ("tcp://host:4022/Orders", NetworkAddress("host", 4022)),
        ("TCP://Host/Orders/2", NetworkAddress("host", DEFAULT_PORT)),
        ("tcp://host:4256", NetworkAddress("host", 4256)),
        ("tcp://host/", NetworkAddress("host", DEFAULT_PORT)),
        ("tcp://[::1]:9/x y", NetworkAddress("::1", 9)),
        ("tcp://host:0/Orders", None),
        ("tcp:///Orders", None),
        ("tcp://host:4022?x/Orders", None),
        ("http://host:4022/Orders", None),
        ("//shop/Orders", None),
        ("Orders", None),
        ("LOCAL", None),
        ("", None),
    ],
)
@pytest.mark.promise("R3.6", "routes 5")
def test_transport_takes_the_address_a_service_name_begins_with(
    service_name: str, expected: NetworkAddress | None
) -> None:
    assert expected == transport_address(service_name)
