"""The simulation in its short form; `make simulate` plays as many stories as one has time for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.play import Outcome, play
from tests.simulation.simulate import trouble
from tests.simulation.story import Story, draw, smaller
from tests.support.tiers import stories

FOUND = (1509, 1693)  # both ends ended at once: the closed one threw early fragments away without acknowledging them
SHORT = 200


@pytest.mark.parametrize("first", stories(SHORT, 20))
def test_everything_promised_comes_true(first: int) -> None:
    for seed in range(first, first + 20):
        assert (seed, "") == (seed, trouble(draw(seed), play)[0])


@pytest.mark.parametrize("seed", FOUND)
def test_story_that_once_went_wrong_goes_well(seed: int) -> None:
    play(draw(seed))


def test_same_number_tells_the_same_story() -> None:
    assert draw(7) == draw(7)
    assert play(draw(19)).digest == play(draw(19)).digest
    assert play(draw(19)).digest != play(draw(92)).digest


def test_what_goes_wrong_is_told_and_made_smaller() -> None:
    def fails(story: Story) -> Outcome:
        assert len(story.deeds) < 2, "too many"
        return Outcome()

    story = next(story for story in map(draw, range(1, 99)) if len(story.deeds) == 10)

    while found := next((one for one in smaller(story) if trouble(one, fails)[0]), None):
        story = found

    assert 2 == len(story.deeds)
    assert "too many" in trouble(story, fails)[0]
    assert ("", Outcome()) == trouble(replace(story, deeds=()), fails)
