"""What is read in a terminal: lines that fit, values that stay whole, and the answer at the end."""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from broker.cli.explain import render_explanation
from broker.cli.output import Terminal
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, RoutingFacts, hosted
from broker.routing.explain import DisplayNames, Explanation, explain, with_permissions
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal, who_is

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ORDERS, ONE, TWO = UUID(int=0x0D << 64), UUID(int=1 << 64), UUID(int=2 << 64)
CONVERSATION = UUID(int=0xC << 64)
FAR, NEAR, ME = NetworkAddress("far.example"), NetworkAddress("near.example"), NetworkAddress("me")


def tell(
    routes: Iterable[Route], *, msdb: Iterable[Route] = (), instance: bytes = NO_GUID, **facts: Any
) -> Explanation:
    """Why a message from the database orders goes where it goes; NEAR has failed, ME is this very instance."""
    here = RoutingContext(
        build_table(routes, now=NOW),
        hosted({ORDERS.bytes: ["Orders"]}),
        lambda address: AddressHealth.SUPPRESSED if address == NEAR else AddressHealth.UNTRIED,
        is_forwarding=True,
        msdb=build_table(msdb, now=NOW),
        own=frozenset({ME}),
    )
    names = DisplayNames({ORDERS.bytes: "orders"}, lambda address: "Connection refused" if address == NEAR else "")
    asked: dict[str, Any] = {"to_service": "Billing", "database": ORDERS.bytes} | facts
    return explain(RoutingFacts(to_broker_instance=instance, conversation_id=CONVERSATION.bytes, **asked), here, names)


def read(
    explanation: Explanation, *, width: int = 80, encoding: str = "utf-8", drawn: bool = False, note: str = ""
) -> str:
    """What stands on a terminal of that width."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding)
    terminal = Terminal(file, width=width)
    render_explanation(explanation, place="shop", is_conversation_drawn=drawn, note=note, terminal=terminal)
    file.flush()
    return raw.getvalue().decode(encoding)


BY_NAME = """\
shop: to Billing, from the database orders
  any broker instance
  conversation 00000000-0000-000c-0000-000000000000

Matching, by the routes of orders
  - 0 reply to a database here: the message begins its way here
  - 1 service and broker instance: the conversation names no broker instance
  ✓ 2 service alone: 1 route matches
      ✓ to (tcp://far.example:4022): matches
  - 3 to 7 not reached: step 2 ended the search, before 1 route of step 3
Choosing
  - mirrored: no member
  - LOCAL: no member
  ✓ network address: taken
      ✓ to: leads to tcp://far.example:4022
Candidates, best first
  1. tcp://far.example:4022, by route to, untried

forwarded to tcp://far.example:4022 by route to
"""


def test_a_route_by_name_is_read_from_the_question_to_the_answer() -> None:
    assert BY_NAME == read(tell([Route("to", FAR, "Billing"), Route("one", NEAR, "Billing", ONE)]))


def test_the_draw_is_a_table_with_the_winner_first() -> None:
    routes = [Route("one", FAR, "Billing", ONE, weight=3), Route("two", NEAR, "Billing", TWO)]

    text = read(tell(routes))

    head, first, second = text.partition("score  ")[2].splitlines()[:3]
    assert "weight  broker instance" == head
    assert [["✓", True], ["·", False]] == [[row.split()[0], row == first] for row in (first, second)]
    assert {str(ONE), str(TWO)} == {row.split()[-1] for row in (first, second)}
    assert "weight 3" in text


def test_one_broker_instance_makes_no_table() -> None:
    assert "score" not in read(tell([Route("one", FAR, "Billing", ONE)]))


def test_candidates_have_a_number_their_health_and_what_is_known_against_them() -> None:
    text = read(tell([Route("one", NEAR, "Billing"), Route("two", FAR, "Billing")]), width=100)

    assert "  1. tcp://far.example:4022, by route two, score" in text
    assert ", untried\n" in text
    assert "  2. tcp://near.example:4022, by route one, score" in text
    assert ", suppressed: Connection refused\n" in text


def test_a_mirror_is_shown() -> None:
    text = read(tell([Route("pair", FAR, "Billing", ONE, mirror_address=NEAR)]))

    assert "pair (tcp://far.example:4022, mirror tcp://near.example:4022, broker" in text
    assert text.endswith("held by route pair: principal unknown (9794)\n")


def test_a_class_behind_the_one_taken_tells_how_many_routes_it_has() -> None:
    text = read(tell([Route("out", FAR), Route("named", TRANSPORT), Route("also", TRANSPORT, weight=2)]))

    assert "  - TRANSPORT: network address comes first (2 routes)\n" in text
    assert "  - TRANSPORT: network address comes first (1 route)\n" in read(
        tell([Route("out", FAR), Route("named", TRANSPORT)])
    )


def test_the_second_pass_has_a_heading_of_its_own() -> None:
    text = read(tell([Route("me", ME, "Billing")], msdb=[Route("far", FAR)]))

    assert "\nMatching again, as if it had come from outside: msdb\n" in text
    assert "this very instance" in text


def test_nothing_matched_is_no_success_and_hints_come_before_the_answer() -> None:
    text = read(tell([Route("to", FAR, "billing")]))

    assert "  ! 7 nothing matched: no step found a route\n" in text
    hint, create, *_ = text.partition("hint: ")[2].split("hint: ")
    assert "orders has a route to 'billing': names compare byte for byte\n" == hint
    assert "\ndelayed: no route (9798); matched again after 10 s and whenever routes or\n  services change\n" in create


def test_the_route_that_no_table_holds_has_a_name() -> None:
    text = read(tell([], to_service="Orders", instance=ORDERS.bytes))

    assert "  ✓ 6 service in a database here: as if a route to LOCAL were there: orders\n" in text
    assert "      ✓ the implied route: the service is here\n" in text


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "shop: to Billing, from the database orders"),
        ({"database": None}, "shop: to Billing, from outside"),
        ({"is_from_target": True}, "shop: to Billing, from the database orders, an answer of the target"),
    ],
)
def test_the_question_stands_first(facts: dict[str, Any], line: str) -> None:
    assert line == read(tell([], **facts)).splitlines()[0]


def test_a_reply_needs_no_route() -> None:
    text = read(tell([], database=None, is_from_target=True, instance=ORDERS.bytes, to_service="Orders"))

    assert "  ✓ 0 reply to a database here: from a target, to the database orders\n" in text
    assert "  - 1 to 7 not reached: a reply needs no route\n" in text
    assert "Choosing" not in text


@pytest.mark.parametrize(
    ("routes", "drawn", "remark"),
    [
        ([Route("a", FAR, "Billing")], True, " (drawn; others go alike)"),
        ([Route("a", FAR, "Billing")], False, ""),
        ([Route("a", FAR, "Billing"), Route("b", NEAR, "Billing")], True, " (drawn; others may differ)"),
        ([Route("a", FAR, "Billing"), Route("b", NEAR, "Billing")], False, " (others may differ)"),
    ],
)
def test_whether_the_conversation_counts_is_told(routes: list[Route], drawn: bool, remark: str) -> None:  # noqa: FBT001
    assert f"  conversation {CONVERSATION}{remark}\n" in read(tell(routes), drawn=drawn)


def test_a_note_stands_below_the_first_line() -> None:
    assert "  not asked" == read(tell([]), note="not asked").splitlines()[1]


def test_what_was_not_listed_is_counted() -> None:
    whole = tell([Route(f"r{number:03}", NetworkAddress(f"h{number}"), "Billing") for number in range(53)])

    text = read(whole)

    assert 2 == text.count("      and 3 more\n")
    assert 1 == text.count("\n  and 3 more\n")


GUIDS = [UUID(int=0xABCDEFABCDEFABCDEFABCDEFABCDEF00 + number) for number in range(9)]


def long_names() -> Explanation:
    """Everything as long as it can be."""
    routes = [Route(f"{number} {'long ' * 9}name", FAR, "Billing", guid) for number, guid in enumerate(GUIDS)]
    return tell([*routes, Route("local", LOCAL), Route("last resort", FAR)])


def test_no_guid_is_ever_broken() -> None:
    """Whatever the width of the terminal, narrower than a GUID included."""
    explanation = long_names()

    def whole(width: int) -> list[int]:
        text = read(explanation, width=width)
        return [text.count(str(guid)) for guid in (CONVERSATION, *GUIDS)]

    expected = whole(100)
    assert [] == [width for width in range(20, 100, 3) if whole(width) != expected]


@pytest.mark.parametrize("width", [64, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """From 64 columns on, which is what the table of the draw needs."""
    assert width >= max(map(len, read(long_names(), width=width).splitlines()))


def test_prose_is_never_wider_than_a_hundred_columns() -> None:
    assert 100 >= max(map(len, read(long_names(), width=300).splitlines()))


def test_marks_become_ascii_where_the_encoding_has_no_others() -> None:
    text = read(structs.replace(tell([Route("zü", FAR, "Billing")]), hints=("ü",)), encoding="ascii")

    assert "  * 2 service alone: 1 route matches\n" in text
    assert "z\\xfc" in text


def test_what_a_terminal_would_obey_is_written_out() -> None:
    text = read(tell([], to_service="\x1b[31m[bold]evil"))

    assert "\x1b" not in text
    assert "\\x1b[31m[bold]evil" in text


def test_permissions_of_a_peer_stand_before_the_routes_and_the_missing_statement_in_the_answer() -> None:
    told = tell([Route("r", FAR)], msdb=[Route("r", FAR)], database=None)
    grants = Grants(
        [PermissionRule(Permission.CONNECT, "*", parse_principal("public"), PermissionState.GRANT)],
        is_default_deny=True,
    )

    text = read(with_permissions(told, who_is("CN=a"), grants), width=100)

    lines = text.splitlines()
    first = lines.index("Permissions of CN=a")
    assert "  ✓ CONNECT: GRANT CONNECT ON ENDPOINT::[Broker] TO [public]" == lines[first + 1]
    assert "  · SEND: no GRANT SEND ON SERVICE::[Billing] TO [CN=a] or public" == lines[first + 2]
    assert "  What follows would be, if it were permitted." == lines[first + 3]
    assert first < lines.index("Matching, by the routes of msdb")
    assert "dropped: not permitted (11215): no GRANT SEND ON SERVICE::[Billing] TO [CN=a] or public;" in text


def test_nothing_is_said_of_permissions_when_no_peer_was_asked_about() -> None:
    assert "Permissions" not in read(tell([Route("r", FAR)]))
