"""The values of an answer: what is known, and what does not change on its way through JSON."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.observe.why import ClosedShown, HeldShown, Severity, WhyAnswer, WhyRequest
from tests.support.why import finding, holding, place, told, way

HELD = HeldShown(True, "S", None, "O", None, "tcp://x:1", "why", 1, 5, 0)


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        ({}, False),
        ({"sides": [holding()]}, True),
        ({"closed": [ClosedShown("orders", True, 3, None, None)]}, True),
        ({"held": [HELD]}, True),
    ],
)
def test_an_id_is_known_where_anything_tells_of_it(more: dict[str, Any], is_known: object) -> None:
    assert is_known == told(place("one", 1, "x"), **more).is_known


def test_an_answer_comes_back_from_json() -> None:
    where = place("one", 1, "two")
    answer = told(where, finding("one", "held", Severity.TROUBLE), ways=(way(where),), sides=[holding()], held=[HELD])

    assert answer == msgspec.json.decode(msgspec.json.encode(answer), type=WhyAnswer)


def test_severities_are_numbers_in_their_order() -> None:
    assert [0, 1, 2] == sorted(Severity)


def test_what_is_asked_about_is_a_guid() -> None:
    assert UUID(int=5) == msgspec.convert({"id": str(UUID(int=5))}, WhyRequest).id
    with pytest.raises(msgspec.ValidationError, match="id"):
        msgspec.convert({"id": "nonsense"}, WhyRequest)
