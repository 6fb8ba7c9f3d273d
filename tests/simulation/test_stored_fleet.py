"""A fleet of whole instances with databases in its short form; `tests.simulation.stored_fleet` plays two thousand."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from broker.conversation.frames import FragmentArrival, classify
from broker.store.sqlite.reassembly import QueueWriter
from tests.simulation.simulate import trouble
from tests.simulation.stored_fleet import play
from tests.simulation.stored_judge import told_apart
from tests.simulation.stored_plan import Region, Size, draw
from tests.simulation.story import Blow

SMALL = Size(regions=3, shops=2, banks=1, pairs=1, bursts=10, seconds=10.0, blows=6)
TINY = Size(regions=2, shops=1, banks=1, pairs=1, bursts=6, seconds=5.0, blows=4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_stored_comes_once_and_in_order_whatever_happens(seed: int) -> None:
    plan = draw(seed, SMALL)

    outcome = play(plan)

    assert (18, []) == (outcome.dialogs, outcome.noted)
    assert min(outcome.messages) > 300
    assert min(outcome.harm[what] for what in ("lost", "doubled", "damaged")) > 0
    assert outcome.happened.total() > 10


def test_same_number_tells_the_same_fleet() -> None:
    assert draw(4, TINY) == draw(4, TINY)
    assert play(draw(4, TINY)).digest == play(draw(4, TINY)).digest
    assert play(draw(4, TINY)).digest != play(draw(5, TINY)).digest


def test_what_has_become_of_messages_is_named() -> None:
    sent = [b"%d" % number for number in range(6)]

    assert {} == told_apart(sent, sent[:4], is_over=False)
    assert {"lost": 2} == told_apart(sent, sent[:4], is_over=True)
    assert {"lost": 1} == told_apart(sent, [b"0", b"2"], is_over=False)
    assert {"doubled": 1} == told_apart(sent, [b"0", b"1", b"1"], is_over=False)
    assert {"out of order": 1} == told_apart(sent, [b"1", b"0"], is_over=False)
    assert {"invented": 1} == told_apart(sent, [b"0", b"9"], is_over=False)


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


def test_partner_that_stores_after_the_other_has_taken_over_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both partners of each pair stand still, one after the other, and lose the lock."""
    plan = draw(1, TINY)
    plan = replace(plan, regions=tuple(replace(one, blows=freezes(one)) for one in plan.regions))
    assert "" == trouble(plan, play)[0]

    for where in ("broker.store.sqlite.transaction.check_epoch", "broker.store.sqlite.write_batch.check_epoch"):
        monkeypatch.setattr(where, lambda _db: None)

    assert trouble(plan, play)[0]


def freezes(region: Region) -> tuple[tuple[str, Blow], ...]:
    pair = region.banks[-1]
    return tuple(
        (pair.service, Blow(at, "freeze", name, "", 1.5)) for at, name in zip((1.0, 3.0), pair.names, strict=True)
    )
