"""Addresses to listen on, and what each type of setting accepts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from msgspec import Meta

from broker.config.schema import SettingFinding, form_of, show
from broker.config.values import (
    ConfigPath,
    DatabaseGuid,
    Duration,
    Listen,
    ListenAddress,
    OptionalListen,
    Pattern,
    PeerAddress,
    Size,
    clash,
    parse_listen,
    text,
)
from broker.routing.address import NetworkAddress


def test_address_is_read_and_written_alike() -> None:
    read = {
        "0.0.0.0:4022": ListenAddress("0.0.0.0", 4022),
        "127.0.0.1:0": ListenAddress("127.0.0.1", 0),
        "[::1]:65535": ListenAddress("::1", 65535),
        "Gateway-A.example:4022": ListenAddress("gateway-a.example", 4022),
    }

    assert read == {text: parse_listen(text) for text in read}
    assert [text.lower() for text in read] == [str(address) for address in read.values()]


def test_address_without_a_port_or_a_host_is_refused() -> None:
    for address in ("", "4022", "h:", "h:x", "h:65536", "h:4022 ", "h:٤"):
        with pytest.raises(ValueError, match="has no port"):
            parse_listen(address)
    for address in (":4022", "*:4022", "::1:4022", "[::1:4022", "a b:1", "tcp://h:1", "1.2.3:1", "u@h:1"):
        with pytest.raises(ValueError, match="names no host"):
            parse_listen(address)


def test_loopback_is_known() -> None:
    hosts = ("localhost", "127.8.9.1", "::1", "0.0.0.0", "::", "example")

    assert ["localhost", "127.8.9.1", "::1"] == [host for host in hosts if ListenAddress(host, 1).is_loopback]


def test_clash_of_two_listeners() -> None:
    clashing = {
        ("a:1", "a:1"): True,
        ("0.0.0.0:1", "127.0.0.1:1"): True,
        ("0.0.0.0:1", "[::1]:1"): False,
        ("0.0.0.0:1", "[::]:1"): True,
        ("127.0.0.1:1", "[::]:1"): True,
        ("a:1", "a:2"): False,
        ("a:0", "a:0"): False,
    }

    for turn in (1, -1):
        assert clashing == {pair: clash(*map(parse_listen, pair[::turn])) for pair in clashing}


GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
WAIT = Annotated[Duration, Meta(ge=1, le=3600)]
ROOM = Annotated[Size, Meta(ge=10, le=1024)]
HOPS = Annotated[int, Meta(ge=1, le=9)]
PART = Annotated[float, Meta(ge=0, le=1)]
NAME = Annotated[str, Meta(min_length=1, max_length=3), text("name")]
WORD = Literal["b", "a"]
# An annotation, what it is written as, and what the program works with.
READ: list[tuple[Any, object, object]] = [
    (WAIT, "1s", 1.0),
    (ROOM, "1KiB", 1024),
    (HOPS, 9, 9),
    (PART, 1, 1.0),
    (bool, True, True),
    (WORD, "b", "b"),
    (NAME, "äöü", "äöü"),
    (ConfigPath, "a/b", Path("a/b")),
    (DatabaseGuid, f"{{{GUID.upper()}}}", UUID(GUID)),
    (Listen, "h:0", ListenAddress("h", 0)),
    (OptionalListen, "", None),
    (PeerAddress, "TCP://Host", NetworkAddress("host", 4022)),
    (tuple[WORD, ...], ["a", "b"], ("a", "b")),
    (Mapping[str, WORD], {"x": "a"}, {"x": "a"}),
]


@pytest.mark.parametrize(("annotation", "written", "expected"), READ)
def test_good_value_is_read(annotation: Any, written: object, expected: object) -> None:
    found: list[SettingFinding] = []

    value = form_of(annotation).read(written, (), found)

    assert (expected, type(expected), []) == (value, type(value), found)


REFUSED: list[tuple[Any, object, str]] = [
    (WAIT, 5, "5 is not a duration from 1s to 1h; write a number and a unit in quotes"),
    (WAIT, "999ms", '"999ms" is out of range; allowed is 1s to 1h'),
    (ROOM, 9, "9 is out of range; allowed is 10 to 1KiB"),
    (HOPS, "3", '"3" is not a whole number from 1 to 9; write it without quotes'),
    (HOPS, 0, "0 is out of range; allowed is 1 to 9"),
    (PART, float("nan"), "nan is out of range"),
    (bool, "true", '"true" is not true or false; write it without quotes'),
    (WORD, "A", '"A" is not one of "b", "a"; write one of these words in quotes'),
    (NAME, "a\0", r'"a\u0000" is not a name'),
    (ConfigPath, "", '"" is not a path'),
    (ConfigPath, "a\n", r'"a\n" is not a path'),
    (DatabaseGuid, "0" * 32, "is not a GUID other than zero"),
    (Listen, "", '"" is not an address to listen on; write "host:port"'),
    (Listen, "h:99999", '"h:99999" is not an address to listen on; write "host:port" with a port up to 65535'),
    (PeerAddress, "h:1", '"h:1" is not an address that a peer could dial; write "tcp://host:port" with a port'),
    (PeerAddress, "TRANSPORT", '"TRANSPORT" is not an address that a peer could dial'),
    (tuple[WORD, ...], ["a", "x"], '[1]: "x" is not one of'),
    (Mapping[str, WORD], {"x": 1}, "x: 1 is not one of"),
]


@pytest.mark.parametrize(("annotation", "written", "problem"), REFUSED)
def test_wrong_value_is_refused_with_what_to_write(annotation: Any, written: object, problem: str) -> None:
    found: list[SettingFinding] = []

    form_of(annotation).read(written, (), found)

    [one] = found
    assert problem in str(one)


def test_text_of_the_environment_is_what_the_file_would_have() -> None:
    cases: list[tuple[Any, str, object]] = [
        (HOPS, "3", 3),
        (HOPS, "9" * 5000, "9" * 5000),
        (PART, "0.5", 0.5),
        (bool, "True", True),
        (WAIT, "10", "10"),
        (tuple[Pattern, ...], '["a"]', ["a"]),
        (tuple[Pattern, ...], "[" * 100_000, "[" * 100_000),
        (Mapping[str, WORD], '{"x": "a"}', {"x": "a"}),
    ]

    assert [written for *_, written in cases] == [form_of(annotation).from_text(text) for annotation, text, _ in cases]


def test_value_is_written_as_the_file_would_have_it() -> None:
    cases: list[tuple[Any, object, object]] = [
        (WAIT, 90.0, "90s"),
        (OptionalListen, None, ""),
        (DatabaseGuid, None, None),
        (tuple[Listen, ...], (ListenAddress("::1", 1),), ["[::1]:1"]),
        (Mapping[str, WORD], {"x": "a"}, {"x": "a"}),
    ]

    assert [written for *_, written in cases] == [form_of(annotation).write(value) for annotation, value, _ in cases]


def test_value_is_shown_short_and_printable() -> None:
    shown = [show(value) for value in ("x" * 100, 10**60, {"a": 1}, "\x1b")]

    assert [f'"{"x" * 59}..."', "a number of many digits", "a table", r'"\u001b"'] == shown
