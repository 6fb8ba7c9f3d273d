"""Explaining never disagrees with what the data path does, and leaves no route of the service untold."""

import msgspec
import pytest
from hypothesis import given, settings

from broker.routing.decide import Pass, RoutingContext, RoutingFacts, class_of, decide
from broker.routing.explain import DisplayNames, Explanation, PassShown, Progress, explain
from broker.routing.route import Route
from tests.property.test_routing import facts, surroundings
from tests.support.tiers import examples


@given(facts, surroundings)
@settings(max_examples=examples(500))
@pytest.mark.promise("R8")
def test_the_explanation_is_the_decision(facts: RoutingFacts, here: RoutingContext) -> None:
    passes: list[Pass] = []
    decision = decide(facts, here, passes)

    explanation = explain(facts, here, DisplayNames({}, str, str))

    assert (decision.database and DisplayNames({}, str, str).database(decision.database)) == explanation.database
    assert decision.is_by_conversation == explanation.is_by_conversation
    assert (decision.database is None or facts.to_service in here.hosted.services_of[decision.database]) == (
        explanation.is_service_there
    )
    assert explanation == msgspec.json.decode(msgspec.json.encode(explanation), type=Explanation)
    assert explanation.sentence.startswith(explanation.outcome)
    if explanation.outcome not in {"forwarded", "delivered"}:
        assert f"{explanation.disposition} ({explanation.number})" in explanation.sentence
    for one, shown in zip(passes, explanation.passes, strict=True):
        check_routes(facts, one, shown)
        check_choice(one, shown)


def telling(route: Route) -> tuple[str, str, str | None]:
    return route.name, route.address_text, None if route.broker_instance is None else str(route.broker_instance)


def check_routes(facts: RoutingFacts, one: Pass, shown: PassShown) -> None:
    """A pass shows what matched, and every route to the service."""
    [matched] = [step for step in shown.steps if step.progress is Progress.MATCHED]
    taken = [fate for step in shown.steps for fate in step.routes if fate.is_taken]
    assert one.decision.step == matched.step
    if one.matched is not None and matched.step != 6:  # whose route is in no table
        assert [telling(route) for route in one.matched.routes] == [
            (f.name, f.address, f.broker_instance) for f in taken
        ]
    assert taken == [fate for fate in matched.routes if fate.is_taken]
    assert [] == [step for step in shown.steps if step.step > matched.step and step.progress != "not reached"]

    fates = [fate for step in shown.steps if step.step in {1, 2, 3} for fate in step.routes]
    known = one.table.all_routes(facts.to_service)
    told = [(fate.name, fate.address, fate.broker_instance) for fate in fates]
    assert sorted(told, key=repr) == sorted(map(telling, known), key=repr)
    assert all(step.why and all(fate.why for fate in step.routes) for step in shown.steps)


def check_choice(one: Pass, shown: PassShown) -> None:
    """A pass shows the class, its candidates, and the draw."""
    taken = [tried.route_class for tried in shown.classes if tried.progress is Progress.MATCHED]
    members = {tried.route_class: len(tried.routes) for tried in shown.classes}
    assert ([] if one.choice is None else [one.choice.route_class]) == taken
    assert [str(c.address) for c in (one.choice.candidates if one.choice else ())] == [
        candidate.address for candidate in shown.candidates
    ]
    if shown.classes and one.matched is not None:
        for route in one.matched.routes:
            members[class_of(route)] -= 1
        assert {0} == set(members.values())
    for step in [step for step in shown.steps if step.scores]:
        picked = [score for score in step.scores if score.is_picked]
        assert [max(step.scores, key=lambda score: score.score).score] == [score.score for score in picked]
        assert one.matched is not None
        assert {str(route.broker_instance) for route in one.matched.routes} == {one.broker_instance for one in picked}
