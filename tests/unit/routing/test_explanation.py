"""The values of an explanation as JSON: every word a person or a program relies on."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from broker.routing.explain import (
    CandidateShown,
    ClassTried,
    Explanation,
    Outcome,
    PassShown,
    Progress,
    RouteFate,
    Score,
    Step,
)

EXPIRY = datetime(2025, 3, 1, 12, tzinfo=UTC)
ROUTE = RouteFate("a", "S", None, "tcp://far:4022", None, 1, EXPIRY, is_taken=True, why="matches")
WHOLE = Explanation(
    to_service="S",
    to_broker_instance=None,
    conversation_id="c",
    is_from_target=False,
    outcome=Outcome.FORWARDED,
    disposition="forwarded",
    number=0,
    step=2,
    route="a",
    next_hop="tcp://far:4022",
    database=None,
    is_service_there=True,
    sentence="forwarded to tcp://far:4022 by route a",
    is_by_conversation=False,
    passes=(
        PassShown(
            "msdb",
            is_incoming=True,
            steps=(Step(2, "title", Progress.MATCHED, "1 route matches", (ROUTE,), (Score("g", 1, 0.5, True),)),),
            classes=(ClassTried("network address", Progress.MATCHED, "taken", (ROUTE,)),),
            candidates=(CandidateShown("tcp://far:4022", "a", "connected", "", 0.5),),
        ),
    ),
    hints=("hint",),
)


def test_a_whole_explanation_survives_json() -> None:
    assert WHOLE == msgspec.json.decode(msgspec.json.encode(WHOLE), type=Explanation)


def test_enums_are_words_and_instants_are_utc() -> None:
    plain = msgspec.to_builtins(WHOLE)

    [step] = plain["passes"][0]["steps"]
    assert ("forwarded", "matched") == (plain["outcome"], step["progress"])
    assert "2025-03-01T12:00:00Z" == step["routes"][0]["lifetime"]


def test_a_step_that_looked_at_no_route_has_empty_lists() -> None:
    plain = msgspec.to_builtins(Step(0, "title", Progress.SKIPPED, "why"))

    assert ((), (), 0) == (plain["routes"], plain["scores"], plain["more_routes"])
