from __future__ import annotations

from datetime import date
from pathlib import Path
from uuid import UUID

import pytest

from broker.config import values as value
from broker.config.values import ListenAddress, ValueKind, ValueRefusedError, show
from broker.routing.address import NetworkAddress

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
CHOICE = value.choice("a", "b")

READ = [
    (value.duration("1s", "1h"), "1s", 1.0),
    (value.duration("1s", "1h"), "1h", 3600.0),
    (value.size(10, 1024), "1KiB", 1024),
    (value.size(10, 1024), 10, 10),
    (value.integer(1, 255, unit="hops"), 255, 255),
    (value.fraction(), 0.25, 0.25),
    (value.fraction(), 1, 1.0),
    (value.flag(), True, True),
    (CHOICE, "b", "b"),
    (value.text("name", longest=3), "äöü", "äöü"),
    (value.path(), "a/b", Path("a/b")),
    (value.guid(), GUID.upper(), UUID(GUID)),
    (value.guid(), None, None),
    (value.listen(), "h:0", ListenAddress("h", 0)),
    (value.listen(may_be_off=True), "", None),
    (value.advertised(), "TCP://Host", NetworkAddress("host", 4022)),
    (value.list_of(value.flag()), [1, "x"], (1, "x")),  # the elements are read by themselves
]


@pytest.mark.parametrize(("kind", "written", "expected"), READ)
def test_good_value_is_read(kind: ValueKind, written: object, expected: object) -> None:
    assert expected == kind.read(written)


REFUSED = [
    (value.duration("1s", "1h"), 5, "5 is no duration"),
    (value.duration("1s", "1h"), "999ms", '"999ms" is out of range; allowed is 1s to 1h'),
    (value.duration("1s", "1h"), "61m", '"61m" is out of range; allowed is 1s to 1h'),
    (value.size(10, 1024), True, "true is no size"),
    (value.size(10, 1024), 1.5, "1.5 is no size"),
    (value.size(10, 1024), 9, "9 is out of range; allowed is 10 to 1KiB"),
    (value.size(10, 1024), "2KiB", '"2KiB" is out of range'),
    (value.integer(1, 9, unit=""), False, "false is no whole number"),
    (value.integer(1, 9, unit=""), "3", '"3" is no whole number; write one from 1 to 9, without quotes'),
    (value.integer(1, 9, unit=""), 0, "0 is out of range"),
    (value.integer(1, 9, unit=""), 10, "10 is out of range; allowed is 1 to 9"),
    (value.fraction(), True, "true is no number"),
    (value.fraction(), "0.5", '"0.5" is no number; write one from 0 to 1, without quotes'),
    (value.fraction(), 1.5, "1.5 is out of range; allowed is 0 to 1"),
    (value.fraction(), float("nan"), "nan is out of range"),
    (value.flag(), "true", '"true" is neither true nor false'),
    (CHOICE, "A", '"A" is not one of the allowed words; allowed is "a", "b"'),
    (CHOICE, ["c"], "a list is not one of the allowed words"),
    (value.text("name", longest=3), 1, "1 is no name; write a text in quotes"),
    (value.text("name", longest=3), "", '"" is no name'),
    (value.text("name", longest=3), "abcd", '"abcd" is no name'),
    (value.text("name", longest=3), "a\0", r'"a\u0000" is no name'),
    (value.path(), {}, "a table is no path"),
    (value.guid(), "x", '"x" is no GUID'),
    (value.guid(), "0" * 32, "the zero GUID stands for any"),
    (value.listen(), "", '"" has no port'),
    (value.listen(), "*:1", '"*:1" names no host'),
    (value.advertised(), "h:1", '"h:1" is no address that a peer could dial'),
    (value.advertised(), "TRANSPORT", '"TRANSPORT" is no address that a peer could dial'),
    (value.list_of(value.flag()), "x", '"x" is no list'),
]


@pytest.mark.parametrize(("kind", "written", "problem"), REFUSED)
def test_wrong_value_is_refused_with_its_reason(kind: ValueKind, written: object, problem: str) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        kind.read(written)

    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (value.integer(1, 9, unit=""), "-12", -12),
        (value.integer(1, 9, unit=""), "1.0", "1.0"),
        (value.fraction(), "0.25", 0.25),
        (value.fraction(), "1e-3", "1e-3"),
        (value.flag(), "TRUE", True),
        (value.flag(), "false", False),
        (value.flag(), "1", "1"),
        (value.list_of(value.flag()), '["a"]', ["a"]),
        (value.list_of(value.flag()), "a,b", "a,b"),
        pytest.param(value.list_of(value.flag()), "[" * 100_000, "[" * 100_000, id="deep"),
        (value.size(1, 2), "5", "5"),
    ],
)
def test_text_from_elsewhere_becomes_what_the_file_would_hold(kind: ValueKind, text: str, expected: object) -> None:
    assert expected == kind.from_text(text)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (True, "true"),
        ("a", '"a"'),
        ("x" * 99, '"' + "x" * 59 + '..."'),
        ("\x1b[1m", r'"\u001b[1m"'),
        ([1], "a list"),
        ({}, "a table"),
        (1.5, "1.5"),
        (date(2020, 1, 2), "2020-01-02"),
        pytest.param(16**9999, "a number of many digits", id="huge"),
        pytest.param(-(16**9999), "a number of many digits", id="minus huge"),
    ],
)
def test_value_is_shown_as_a_person_would_recognise_it(shown: object, text: str) -> None:
    assert text == show(shown)
