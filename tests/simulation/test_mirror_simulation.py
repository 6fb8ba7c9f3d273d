"""The simulation of mirrored pairs in its short form; `make simulate` plays as many stories as one has time for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.routing.mirrored import TRANSITIONS, MirrorEvent, MirrorSide, MirrorState
from tests.simulation.mirror_play import play
from tests.simulation.mirror_story import BLOWS, draw, smaller
from tests.simulation.simulate import trouble
from tests.support.tiers import stories

SHORT = 300
MISJUDGED = (37915, 67371)  # a mirror that had lied, and was believed, became stale with frames on their way to it


@pytest.mark.parametrize("first", stories(SHORT, 30))
def test_every_message_is_committed_once_and_by_a_principal(first: int) -> None:
    for seed in range(first, first + 30):
        assert (seed, "") == (seed, trouble(draw(seed), play)[0])


@pytest.mark.parametrize("seed", MISJUDGED)
def test_story_that_was_once_judged_wrong_goes_well(seed: int) -> None:
    play(draw(seed))


def test_same_number_tells_the_same_story() -> None:
    assert draw(7) == draw(7)
    assert play(draw(7)).digest == play(draw(7)).digest
    assert play(draw(7)).digest != play(draw(8)).digest


def test_everything_that_can_happen_happens() -> None:
    assert set(BLOWS) == {blow.what for seed in range(1, SHORT + 1) for blow in draw(seed).blows}


def first_trouble(*, is_fenced: bool = True) -> str:
    for seed in range(1, SHORT + 1):
        problem, _ = trouble(replace(draw(seed), is_fenced=is_fenced), play)
        if problem:
            return problem
    return ""


def test_receivers_that_are_not_held_to_the_epoch_are_found_out() -> None:
    """The judge can fail: without the fence a principal that stood still commits what is not its own any more."""
    assert "committed" in first_trouble(is_fenced=False)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (MirrorEvent.CLAIMS_LOWER, "a stale copy"),
        (MirrorEvent.LOST, "which claims nothing"),
    ],
)
def test_probers_that_believe_too_much_are_found_out(
    word: MirrorEvent, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge can fail: a stale copy believed, or the partner used without a claim."""
    for (before, side, heard), _ in list(TRANSITIONS.items()):
        if heard is word and before is not MirrorState.NEVER_USED:
            is_first = (side is MirrorSide.FIRST) == (word is MirrorEvent.CLAIMS_LOWER)
            wrong = MirrorState.FIRST_PRINCIPAL if is_first else MirrorState.SECOND_PRINCIPAL
            monkeypatch.setitem(TRANSITIONS, (before, side, heard), wrong)

    assert told in first_trouble()


def test_story_is_made_smaller() -> None:
    story = next(story for story in map(draw, range(1, 99)) if len(story.blows) > 3 and len(story.dialogs) > 1)

    while found := next((one for one in smaller(story) if one.blows), None):
        story = found

    assert (1, [1]) == (len(story.blows), [messages for _, messages, _ in story.dialogs])
