"""A fleet of whole instances with databases in its short form; `tests.simulation.stored_fleet` plays two thousand."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from broker.conversation.frames import FragmentArrival, classify
from broker.store.sqlite.reassembly import QueueWriter
from tests.simulation.simulate import trouble
from tests.simulation.stored_fleet import play
from tests.simulation.stored_plan import Size, draw

SMALL = Size(regions=3, shops=2, banks=1, pairs=1, bursts=10, seconds=10.0, blows=6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_stored_comes_once_and_in_order_whatever_happens(seed: int) -> None:
    plan = draw(seed, SMALL)

    outcome = play(plan)

    assert (18, []) == (outcome.dialogs, outcome.noted)
    assert min(outcome.messages) > 300
    assert min(outcome.harm[what] for what in ("lost", "doubled", "damaged")) > 0
    assert outcome.happened.total() > 10


def found() -> str:
    return trouble(draw(1, SMALL), play)[0]


def test_duplicate_that_is_taken_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(*where: Any) -> FragmentArrival:
        arrival = classify(*where)
        return FragmentArrival.EXPECTED if arrival is FragmentArrival.DUPLICATE else arrival

    monkeypatch.setattr("broker.store.sqlite.receive.classify", placed)

    assert "'doubled'" in found()


def test_message_that_is_acknowledged_and_not_stored_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, numbers = QueueWriter.flush, count()

    def forget(delivery: QueueWriter) -> None:
        if delivery._rows and next(numbers) % 50 == 49:
            del delivery._rows[0]
        flush(delivery)

    monkeypatch.setattr(QueueWriter, "flush", forget)

    assert "'lost'" in found()
