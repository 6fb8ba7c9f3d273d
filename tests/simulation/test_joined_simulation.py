"""The joined simulation in its short form; `make simulate OF=joined` plays as many stories as one has time for."""

from __future__ import annotations

import pytest

from broker.net.peers import Peers
from tests.simulation.joined_play import play
from tests.simulation.joined_story import BLOWS, TIERS, draw, smaller
from tests.simulation.simulate import trouble

SHORT = 45


@pytest.mark.parametrize("first", range(1, SHORT + 1, 15))
def test_everything_promised_comes_true_of_whole_instances(first: int) -> None:
    for seed in range(first, first + 15):
        assert (seed, "") == (seed, trouble(draw(seed), play)[0])


def test_same_number_tells_the_same_story() -> None:
    assert draw(2) == draw(2)
    assert play(draw(2)).digest == play(draw(2)).digest
    assert play(draw(2)).digest != play(draw(4)).digest


def test_everything_that_can_happen_happens() -> None:
    stories = [draw(seed) for seed in range(1, 300)]

    assert set(BLOWS) == {blow.what for story in stories for blow in story.blows}
    assert set(TIERS) == {story.tiers for story in stories}
    assert {True, False} == {story.is_pair for story in stories}


def test_database_that_does_not_look_at_its_epoch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail: a principal that stood still, and lost its lock, goes on beside the next one."""
    for place in ("broker.store.database.check_epoch", "broker.store.turn.check_epoch"):
        monkeypatch.setattr(place, lambda _db: None)

    assert trouble(draw(73), play)[0]


def test_instances_that_keep_two_connections_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail: both sides have dialled, and neither connection gives way."""
    monkeypatch.setattr(Peers, "_arbitrate", lambda *_: False)

    assert "two connections" in trouble(draw(36), play)[0]


def test_story_is_made_smaller() -> None:
    story = next(story for story in map(draw, range(1, 99)) if len(story.blows) > 2 and sum(story.tiers) > 2)

    while found := next((one for one in smaller(story) if one.blows), None):
        story = found

    assert (1, ()) == (len(story.blows), story.deeds)
