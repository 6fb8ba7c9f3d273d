"""Stories of pairs with a file for each partner, in their short form; `make simulate OF=commanded` plays more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.dialog.endpoint import Endpoint
from broker.routing.mirrored import OwnRole
from tests.simulation.command_pair import Arbiter
from tests.simulation.command_play import play
from tests.simulation.command_story import BLOWS, CommandStory, draw
from tests.simulation.joined_story import JoinedStory, smaller
from tests.simulation.machine import Road
from tests.simulation.simulate import trouble
from tests.simulation.story import Blow, Deed, Habit
from tests.support.tiers import stories

SHORT = 20
STOPPED = replace(  # the principal stands still in a turn, and its partner is named and takes the same messages
    draw(1),
    tiers=(1,),
    road=Road(),
    store_failure=0.0,
    pool_bytes=1 << 20,
    habits={"shop": Habit(), "bank": Habit()},
    deeds=tuple(Deed(0.1, "shop", "send", 0, 350) for _ in range(40)),
    blows=(Blow(1.0, "overtake_turn", "", "9", 0.0),),
    hold=1.0,
    interval=0.2,
    answer=0.05,
)
STOPPED_IN_COMMIT = replace(STOPPED, may_stand_in_commit=True)
FROZEN = replace(STOPPED, blows=(Blow(1.0, "overtake", "", "0", 0.0),))
PLANNED = replace(STOPPED, blows=(Blow(1.0, "fail_over", "", "0", 2.0),))
SLOW = replace(STOPPED, blows=(Blow(0.5, "slow", "", "0", 4.0), Blow(2.0, "fail_over", "", "0", 2.0)))


@pytest.mark.parametrize("first", stories(SHORT, 10))
def test_everything_promised_comes_true_of_pairs_with_two_files(first: int) -> None:
    for seed in range(first, first + 10):
        assert (seed, "") == (seed, trouble(draw(seed), play)[0])


@pytest.mark.parametrize("story", [STOPPED, STOPPED_IN_COMMIT, FROZEN, PLANNED, SLOW])
def test_partner_is_named_and_everything_comes_once(story: CommandStory) -> None:
    told = "\n".join(play(story).history)

    assert "bank-b is to be the principal" in told
    assert ("stands still in a turn" in told) == (story.blows[0].what == "overtake_turn")


@pytest.mark.parametrize("number", [494, 1436])
def test_story_that_was_once_judged_wrong_goes_well(number: int) -> None:
    """
    An answer that was late when all was over made the principal lapse once more.

    The application looked into a file whose daemon had stood still for a moment within a turn, and read no more.
    """
    play(draw(number))


def test_same_number_tells_the_same_story() -> None:
    assert draw(3) == draw(3)
    assert play(draw(3)).digest == play(draw(3)).digest
    assert play(STOPPED).digest == play(STOPPED).digest != play(draw(3)).digest


def test_everything_that_can_happen_happens() -> None:
    assert set(BLOWS) == {blow.what for seed in range(1, 100) for blow in draw(seed).blows}


def test_turn_that_does_not_look_at_the_clock_before_commit_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail: who stood still in a transaction ends it beside the next principal."""
    monkeypatch.setattr("broker.store.sqlite.transaction.commit", lambda db: db.execute("COMMIT"))

    assert "stores something" in trouble(STOPPED, play)[0]


def test_answer_without_a_look_at_the_clock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise: who stood still within COMMIT acknowledges what the next principal does not have."""
    monkeypatch.setattr("broker.store.sqlite.write_batch.check_confirmed", lambda _db: None)
    monkeypatch.setattr(Endpoint, "_submit", _submit_always)

    assert trouble(STOPPED_IN_COMMIT, play)[0]


def test_role_that_is_held_for_ever_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise: who stood still goes on as the principal."""
    monkeypatch.setattr(OwnRole, "is_confirmed", lambda *_: True)

    assert trouble(FROZEN, play)[0]


def test_role_that_is_held_from_the_answer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise: the answer was on its way for as long as the role holds."""
    on_word = OwnRole.on_word
    monkeypatch.setattr(OwnRole, "on_word", lambda own, word, _asked_at, now: on_word(own, word, now, now))

    assert any("the principal" in trouble(replace(SLOW, seed=seed), play)[0] for seed in range(12))


def test_failover_without_a_copy_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decides has to copy: else what was acknowledged is gone."""
    monkeypatch.setattr("tests.simulation.command_pair._copy", _copy_nothing)

    assert trouble(PLANNED, play)[0]


def test_failover_without_a_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decides has to wait for role_timeout: else two of them are the principal."""
    monkeypatch.setattr(Arbiter, "_is_released", lambda *_: True)

    assert "the principal" in trouble(PLANNED, play)[0]


def test_story_is_made_smaller() -> None:
    story: JoinedStory = next(story for story in map(draw, range(1, 99)) if len(story.blows) > 2)

    while found := next((one for one in smaller(story) if one.blows), None):
        story = found

    assert (1, ()) == (len(story.blows), story.deeds)


def _submit_always(endpoint: Endpoint, frames: list, now: float) -> None:  # type: ignore[type-arg]
    made = [(way, frame) for way, frame in frames if frame is not None]
    endpoint._forwarder.submit(made, now, endpoint.transmitter)


def _copy_nothing(_source: Path, _destination: Path) -> int:
    return 9
