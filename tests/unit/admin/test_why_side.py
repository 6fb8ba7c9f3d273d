"""One side: its cause, how much it weighs, and the words that name cause and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from broker.observe.explain import ExplainAnswer
from broker.observe.why import PoisonShown, Severity, SideShown, Spot, WhyFinding, messages, side_findings, when
from tests.support.why import AT, holding, place, side, way

SPOT = Spot("orders-1", "orders", 0.0)
GOOD, NO_ROUTE = way(place("one", 1, "two")), way(place("one", 1, ""))
DOWN = way(place("one", 1, "two", problem="Connection refused"))
DENIED = way(place("one", 1, "two", problem="FATAL from the peer: CN=a may not connect: no GRANT CONNECT"))
POISON = PoisonShown(3, 5, AT, AT, "ValueError: x")
FINE, WAITING, TROUBLE = Severity.FINE, Severity.WAITING, Severity.TROUBLE


def found(one: SideShown, route: ExplainAnswer | None = GOOD) -> list[WhyFinding]:
    return list(side_findings(one, route, SPOT))


@pytest.mark.parametrize(
    ("one", "route", "cause", "severity", "words"),
    [
        (holding(), NO_ROUTE, "no route", TROUBLE, ("no route", "CREATE ROUTE [S]")),
        (
            holding(),
            DOWN,
            "next hop not reached",
            TROUBLE,
            ("tcp://two:4022 is not reached: Connection", "start the instance"),
        ),
        (
            holding(),
            DENIED,
            "next hop not reached",
            TROUBLE,
            ("no GRANT CONNECT", "in msdb of the instance at tcp://two:4022: run the GRANT CONNECT"),
        ),
        (
            holding(status="sent; refused by the next hop: pool limit exceeded (11289)"),
            GOOD,
            "pool limit exceeded",
            TROUBLE,
            ("tcp://two:4022 takes none", "raise endpoint.message_forward_size"),
        ),
        (
            holding(status="refused by the next hop: hops exhausted (11285)"),
            None,
            "hops exhausted",
            TROUBLE,
            ("the next hop takes none", "raise endpoint.max_hops"),
        ),
        (
            holding(status="sent; refused by the next hop: already held (11288)"),
            GOOD,
            "already held",
            TROUBLE,
            (
                "tcp://two:4022 has copies of them that wait there",
                "broker why at tcp://two:4022 tells what the copies wait for: a next hop that does not take them, or",
            ),
        ),
        (
            holding(status="refused by the next hop: not permitted: no GRANT SEND ON SERVICE::[S] TO [CN=a] (11215)"),
            GOOD,
            "not permitted",
            TROUBLE,
            (
                "no GRANT SEND ON SERVICE::[S] TO [CN=a]",
                "in msdb of tcp://two:4022: run the GRANT SEND that the reason names",
            ),
        ),
        (holding(), GOOD, "not acknowledged", WAITING, ("sent and not acknowledged yet", "nothing, unless it lasts")),
        (side(send_sequence=3), GOOD, "acknowledged", FINE, ("a database of S has stored it", "")),
        (side(), GOOD, "nothing sent", FINE, ("the far side hears of a dialog", "")),
        (
            side(is_initiator=False, receive_sequence=1),
            NO_ROUTE,
            "no way back",
            TROUBLE,
            ("no route", "CREATE ROUTE [S]"),
        ),
        (
            side(state="ER", error_code=-8490, error_text="none"),
            GOOD,
            "error -8490",
            TROUBLE,
            ("says so: none", "CREATE SERVICE [S]"),
        ),
        (side(state="ER", error_code=-8489), GOOD, "lifetime over", TROUBLE, ("says so", "begin a new dialog")),
        (side(state="ER"), GOOD, "error", TROUBLE, ("has been received, and is not kept", "END CONVERSATION")),
    ],
)
def test_what_one_side_sends(
    one: SideShown, route: ExplainAnswer | None, cause: str, severity: Severity, words: tuple[str, str]
) -> None:
    """Shape: `words` are in the reason, and in the remedy."""
    first = found(one, route)[0]

    assert ("orders-1", "orders", cause, severity) == (first.instance, first.database, first.cause, first.severity)
    assert words[0] in first.why
    assert words[1] in first.remedy
    assert first.symptom
    assert first.next


@pytest.mark.parametrize("route", [GOOD, NO_ROUTE, DOWN], ids=["good", "no route", "down"])
def test_a_side_that_ended_with_an_error_says_which_while_it_is_on_its_way(route: ExplainAnswer) -> None:
    (told,) = found(holding(2, state="DO", sent_error_code=9, sent_error_text="out of stock"), route)
    (bare,) = found(holding(1, state="DO", sent_error_code=9), route)

    assert told.symptom.endswith("from number 0 on; the last of them ends the dialog with error 9: out of stock")
    assert bare.symptom.endswith("from number 0 on; the last of them ends the dialog with error 9")


UNREAD: dict[str, Any] = {"send_sequence": 1, "ready": 2, "ready_since": AT}


@pytest.mark.parametrize(
    ("more", "cause", "severity", "why", "remedy"),
    [
        (UNREAD, "waiting for RECEIVE", TROUBLE, "no reader runs", "start the application that receives from Q"),
        (UNREAD | {"readers": 2}, "waiting for RECEIVE", WAITING, "2 reader processes", "broker run"),
        (UNREAD | {"is_receive_enabled": False}, "queue off", TROUBLE, "is OFF", "ALTER QUEUE [Q] WITH STATUS = ON"),
        (UNREAD | {"is_taken": True}, "being read", WAITING, "has the conversation group", "unless it lasts"),
        (
            {"poison": POISON, "quarantined": 4},
            "in quarantine",
            TROUBLE,
            "message 3 made its reader fail 5 times in a row",
            "broker quarantine resume -d orders HANDLE",
        ),
        (
            {"poison": PoisonShown(3, 1, AT, None, "E"), "ready": 1},
            "tried again",
            WAITING,
            "made its reader fail once",
            "correct the reader",
        ),
        ({"early_fragments": 7}, "out of order", WAITING, "message 0 has not come whole", "unless it lasts"),
        ({"state": "DI"}, "far side ended", TROUBLE, "nothing can be sent any more", "END CONVERSATION"),
        (UNREAD | {"state": "DI"}, "far side ended", WAITING, "nothing can be sent any more", "END CONVERSATION"),
    ],
)
def test_what_has_come_for_one_side(
    more: dict[str, Any], cause: str, severity: Severity, why: str, remedy: str
) -> None:
    last = found(side(**more))[-1]

    assert (cause, severity) == (last.cause, last.severity)
    assert why in last.why
    assert remedy in last.remedy


def test_the_symptom_of_what_waits_names_both_ends_and_since_when() -> None:
    [one] = found(holding(1200, lifetime=None))

    symptom = (
        "1,200 messages from //Orders to S wait in orders, since 2026-03-01 12:00:00 UTC:"
        " not acknowledged from number 0 on"
    )
    assert symptom == one.symptom
    assert one.next.endswith("the lifetime of the dialog ends at an unknown time")


def test_a_target_that_has_received_nothing_misses_no_way_back() -> None:
    assert [] == found(side(is_initiator=False), NO_ROUTE)


def test_words() -> None:
    assert ["1 message", "0 messages", "2,000 messages"] == [messages(count) for count in (1, 0, 2000)]
    assert ("2026-03-01 12:00:00 UTC", "an unknown time") == (when(AT), when(None))
