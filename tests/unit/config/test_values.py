""""""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest

from broker.config import values as value
from broker.config.toml import KeyPath
from broker.config.values import (
    ROLE_WORDS,
    AdminRole,
    HolderError,
    HolderKind,
    ListenAddress,
    Reload,
    Section,
    SectionError,
    Setting,
    SettingFinding,
    ValueFault,
    ValueKind,
    ValueRefusedError,
    Wrong,
    clash,
    keys_of,
    kind_at,
    names_at,
    parse_holder,
    parse_listen,
    role_of,
    section,
    sections,
    setting,
    settings_of,
    show,
)
from broker.routing.address import NetworkAddress
from broker.security.principal import NOBODY, Who


@pytest.mark.parametrize("role", AdminRole)
def test_a_role_is_the_one_of_its_word(role: AdminRole) -> None:
    assert role is role_of(role.word)


def test_roles_come_one_above_the_other() -> None:
    assert ("none", "viewer", "operator", "admin") == ROLE_WORDS
    assert sorted(AdminRole) == list(AdminRole)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("user:alice", HolderKind.USER, "alice"),
        ("user:1000", HolderKind.USER, "1000"),
        ("group:ops", HolderKind.GROUP, "ops"),
        ("token:ci-1", HolderKind.TOKEN, "ci-1"),
        ("certificate:CN=ops,O=shop", HolderKind.CERTIFICATE, "CN=ops,O=shop"),
        ("certificate:spiffe://shop/ops", HolderKind.CERTIFICATE, "spiffe://shop/ops"),
    ],
)
def test_a_holder_is_a_kind_and_a_name(text: str, kind: HolderKind, name: str) -> None:
    holder = parse_holder(text)

    assert (kind, name) == (holder.kind, holder.name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alice", "names nobody"),
        ("user:", "names nobody"),
        ("role:alice", "names nobody"),
        (":alice", "names nobody"),
        ("token:a b", "no name of a token"),
        ("token:../x", "no name of a token"),
        ("certificate:CN=a,b", "no subject"),
        ("certificate:sha256:12", "no fingerprint"),
        ("certificate:public", "for everybody"),
    ],
)
def test_anything_else_is_refused_with_what_would_do(text: str, problem: str) -> None:
    with pytest.raises(HolderError, match=problem):
        parse_holder(text)


def test_a_certificate_is_known_by_what_it_proves() -> None:
    holder = parse_holder("certificate:CN=ops")

    assert holder.shows(Who(subject="CN=ops", common_name="ops"))
    assert not holder.shows(Who(subject="CN=other", common_name="other"))
    assert not holder.shows(NOBODY)


def test_nobody_else_is_known_by_a_certificate() -> None:
    assert not parse_holder("user:ops").shows(Who(subject="CN=ops", common_name="ops"))


def test_a_finding_depends_on_no_other_key_unless_it_says_so() -> None:
    found = SettingFinding(("admin", "listen"), "is wrong", "correct it")

    assert () == found.also


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


# --- test_section ---
# A section by itself: what it reads, every fault in one run, and a value that stays as it is.


HOPS = value.integer(1, 9, unit="hops")


class Leaf(Section):
    hops: Annotated[int, HOPS] = setting(3, "How far.", reason="Far enough.", reload=Reload.LIVE)
    pause: Annotated[float, value.duration("1s", "1h")] = setting("2s", "How long.", reason="", reload=Reload.LIVE)
    names: Annotated[tuple[int, ...], value.list_of(HOPS)] = setting(
        None, "Who.", reason="", reload=Reload.RESTART, said="one", factory=lambda: [1]
    )


class Entry(Section):
    hops: Annotated[int, HOPS] = setting(..., "How far.", reason="", reload=Reload.LIVE)


class Root(Section):
    leaf: Leaf = section(Leaf)
    entries: Mapping[str, Entry] = sections()


def test_a_table_is_read_with_its_defaults() -> None:
    root = Root.read({"leaf": {"hops": 5}, "entries": {"one": {"hops": 7}}})

    assert (5, 2.0, (1,), 7) == (root.leaf.hops, root.leaf.pause, root.leaf.names, root.entries["one"].hops)


def test_it_may_be_made_by_name_and_of_sections_that_are_there() -> None:
    assert Root.read({"leaf": {"hops": 5}}) == Root(leaf=Leaf(hops=5))


def test_what_was_given_is_known() -> None:
    root = Root.read({"leaf": {"hops": 3}})

    assert [{"leaf"}, {"hops"}, frozenset()] == [root.given, root.leaf.given, Root().leaf.given]


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        (
            {"leaf": {"hops": 0, "hop": 1, "names": [1, "x", 2, 77]}, "entries": {"a": {}, "b": 2}, "self": 1},
            [
                (("leaf", "hops"), Wrong.REFUSED, 0),
                (("leaf", "names", 1), Wrong.REFUSED, "x"),
                (("leaf", "names", 3), Wrong.REFUSED, 77),
                (("leaf", "hop"), Wrong.UNKNOWN, 1),
                (("entries", "a", "hops"), Wrong.MISSING, None),
                (("entries", "b"), Wrong.NO_SECTION, 2),
                (("self",), Wrong.UNKNOWN, 1),
            ],
        ),
        (
            {"leaf": [1], "entries": 5},
            [(("leaf",), Wrong.NO_SECTION, [1]), (("entries",), Wrong.NO_SECTION, 5)],
        ),
    ],
)
def test_every_fault_is_found_in_one_run(table: dict[str, Any], faults: list[Any]) -> None:
    with pytest.raises(SectionError) as caught:
        Root.read(table)

    assert faults == [(one.path, one.wrong, one.value) for one in caught.value.faults]


def test_a_fault_says_what_is_wrong_with_which_key() -> None:
    with pytest.raises(SectionError) as caught:
        Leaf(hops=0, hop=1)  # type: ignore[call-arg]

    assert "hops: 0 is out of range; allowed is 1 to 9\nhop: unknown" == str(caught.value)


def test_nothing_of_it_can_be_changed() -> None:
    leaf = Leaf()

    with pytest.raises(AttributeError, match=r"Leaf\.hops cannot be changed"):
        leaf.hops = 4  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"Leaf\.hops cannot be changed"):
        del leaf.hops

    assert 3 == leaf.hops


def test_another_one_takes_values_as_they_are_and_leaves_the_first() -> None:
    leaf = Leaf()

    other = leaf.with_values({"pause": 0.01})

    assert (0.01, 3, 2.0) == (other.pause, other.hops, leaf.pause)


def test_two_are_equal_by_their_values_alone() -> None:
    assert Leaf() == Leaf(hops=3)
    assert Leaf() != Leaf(hops=4)
    assert Leaf() != Entry(hops=3)
    assert Leaf() != 3


def test_it_is_shown_with_its_values() -> None:
    assert "Root(leaf=Leaf(hops=3, pause=2.0, names=(1,)), entries={})" == repr(Root())


def test_it_goes_to_another_process_and_stays_the_same() -> None:
    root = Root.read({"entries": {"one": {"hops": 7}}})

    assert root == pickle.loads(pickle.dumps(root))


def test_a_key_without_a_default_is_required() -> None:
    assert [True, False, False] == [
        key.is_required for key in (keys_of(Entry)["hops"], keys_of(Leaf)["hops"], keys_of(Leaf)["names"])
    ]


def test_a_field_that_is_neither_a_setting_nor_a_section_is_a_fault_of_the_program() -> None:
    class Odd(Section):
        hops: int = setting(3, "How far.", reason="", reload=Reload.LIVE)

    with pytest.raises(AssertionError, match="neither a kind nor a section"):
        Odd()


def test_a_fault_without_words_names_its_kind() -> None:
    assert "a.b: no section" == str(ValueFault(("a", "b"), Wrong.NO_SECTION))


FLAG = value.flag()
WORDS = value.list_of(value.text("word", longest=5))


class _Leaf(Section):
    hops: Annotated[int, HOPS] = setting(3, "How far.", reason="Far enough.", reload=Reload.LIVE)
    names: Annotated[tuple[str, ...], WORDS] = setting(
        None, "Who.", reason="People.", reload=Reload.RESTART, said="the host", factory=lambda: ["me"]
    )


class _Entry(Section):
    on: Annotated[bool, FLAG] = setting(default=False, description="Whether.", reason="No.", reload=Reload.RECONNECT)
    words: Annotated[tuple[str, ...], WORDS] = setting(..., "Which.", reason="None.", reload=Reload.LIVE)


class _Root(Section):
    leaf: _Leaf = section(_Leaf)
    entries: Mapping[str, _Entry] = sections()


def test_every_setting_is_listed_in_order_with_all_it_carries() -> None:
    expected = [
        (("leaf", "hops"), HOPS, "3", False, "How far.", "Far enough.", Reload.LIVE),
        (("leaf", "names"), WORDS, "the host", True, "Who.", "People.", Reload.RESTART),
        (("entries", "NAME", "on"), FLAG, "false", False, "Whether.", "No.", Reload.RECONNECT),
        (("entries", "NAME", "words"), WORDS, "", False, "Which.", "None.", Reload.LIVE),
    ]

    assert [Setting(*one) for one in expected] == list(settings_of(_Root))


@pytest.mark.parametrize(
    ("default", "text"), [("1s", '"1s"'), (["a", "b"], '["a", "b"]'), ([], "[]"), (True, "true"), (7, "7")]
)
def test_default_is_shown_as_the_file_would_hold_it(default: object, text: str) -> None:
    class Sample(Section):
        one: Annotated[object, FLAG] = setting(default, "", reason="", reload=Reload.LIVE)

    assert [text] == [one.default for one in settings_of(Sample)]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ((), ["leaf", "entries"]),
        (("leaf",), ["hops", "names"]),
        (("entries",), []),
        (("entries", "any"), ["on", "words"]),
        (("entries", "any", "on"), []),
        (("nothing",), []),
        (("nothing", "below"), []),
        (("leaf", "hops", "below"), []),
    ],
)
def test_names_at_a_path(path: KeyPath, names: list[str]) -> None:
    assert names == names_at(_Root, path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (("leaf", "hops"), HOPS),
        (("entries", "any", "on"), FLAG),
        (("leaf",), None),
        (("entries",), None),
        (("entries", "any"), None),
        (("leaf", "hops", "below"), None),
        ((), None),
    ],
)
def test_kind_at_a_path(path: KeyPath, kind: value.ValueKind | None) -> None:
    assert kind == kind_at(_Root, path)


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
