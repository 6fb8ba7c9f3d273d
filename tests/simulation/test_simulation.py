"""Simulations in their short form; `make simulate` plays as many stories as one has time for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.forwarding import forwarder
from broker.forwarding.reroute import Rerouter
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers
from broker.routing.mirrored import OwnRole
from tests.simulation import command, joined, target_play, world
from tests.simulation.command import Arbiter, CommandStory
from tests.simulation.machine import Road
from tests.simulation.performance import DAY, Blow, Deed, Habit
from tests.simulation.simulate import tell, trouble

SHORT = {"joined": (60, 20), "targets": (150, 30), "commanded": (20, 10)}
CASES = [
    pytest.param(name, range(first, first + step), marks=[pytest.mark.long] * (first > 1), id=f"{name} from {first}")
    for name, (count, step) in SHORT.items()
    for first in range(1, count, step)
]
ONCE_WRONG = (494, 1436)  # commanded: a late answer made the principal lapse; an application read no more of a file
LOST_WAY = replace(  # one of two gateways is without power, while six dialogs, some by each, send more than TCP keeps
    joined.draw(1),
    tiers=(1, 2),
    is_pair=False,
    road=Road(room=300),
    pool_bytes=1 << 20,
    store_failure=0.0,
    lifetimes=(DAY,) * 6,
    deeds=tuple(Deed(0.1, "shop", "send", number % 6, 350) for number in range(60)),
    blows=tuple(Blow(at, "power", name, "gateway-00", 5.0) for at, name in ((0.5, "gateway-10"), (8.0, "gateway-11"))),
)
STOPPED = replace(  # the principal stands still in a turn, and its partner is named and takes the same messages
    command.draw(1),
    tiers=(1,),
    road=Road(),
    store_failure=0.0,
    pool_bytes=1 << 20,
    habits={"shop": Habit(), "bank": Habit()},
    deeds=tuple(Deed(0.1, "shop", "send", 0, 350) for _ in range(40)),
    blows=(Blow(0.8, "overtake_turn", "", "9", 0.0),),
    hold=1.0,
    interval=0.2,
    answer=0.05,
)
STOPPED_IN_COMMIT = replace(STOPPED, may_stand_in_commit=True)
FROZEN = replace(STOPPED, blows=(Blow(1.0, "overtake", "", "0", 0.0),))
PLANNED = replace(STOPPED, blows=(Blow(1.0, "fail_over", "", "0", 2.0),))
SLOW = replace(STOPPED, blows=(Blow(0.5, "slow", "", "0", 4.0), Blow(2.0, "fail_over", "", "0", 2.0)))


@pytest.mark.parametrize(("name", "seeds"), CASES)
@pytest.mark.promise(
    7, "The network is cut, or bad", "The principal of a mirrored pair is lost", "routing 6", "multiple 22"
)
def test_everything_promised_comes_true(name: str, seeds: range) -> None:
    assert [] == [told for told in (tell(name, seed) for seed in seeds) if told.problem]


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_story_that_once_went_wrong_goes_well(seed: int) -> None:
    assert "" == tell("commanded", seed).problem


def test_hints_that_are_lost_late_doubled_or_stale_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "HINTED", 0.4)

    assert [] == [told for told in (tell("joined", seed) for seed in range(1, 9)) if told.problem]


def test_frames_that_are_held_for_a_lost_link_leave_by_another() -> None:
    assert "" == trouble(LOST_WAY, joined.play)[0]


@pytest.mark.parametrize("story", [STOPPED, STOPPED_IN_COMMIT, FROZEN, PLANNED, SLOW])
def test_partner_is_named_and_everything_comes_once(story: CommandStory) -> None:
    told = "\n".join(command.play(story).history)

    assert "bank-b is to be the principal" in told
    assert ("stands still in a turn" in told) == (story.blows[0].what == "overtake_turn")


# --- the judge can fail ---


def of_joined(seed: int) -> Callable[[], str]:
    return lambda: trouble(joined.draw(seed), joined.play)[0]


@pytest.mark.parametrize(
    ("places", "broken", "story", "told"),
    [
        (
            ["broker.store.sqlite.transaction.check_epoch", "broker.store.sqlite.write_batch.check_epoch"],
            lambda _db: None,
            of_joined(198),
            "",
        ),
        ([Peers._resolve_duplicate], lambda *_: False, of_joined(43), "two connections"),
        ([Mirrors.on_unserved], lambda *_: None, of_joined(41), "believes in"),
        ([Rerouter.by_health], lambda *_: None, lambda: trouble(LOST_WAY, joined.play)[0], "leads on"),
        (
            ["broker.store.sqlite.transaction.commit"],
            lambda db: db.execute("COMMIT"),
            lambda: trouble(STOPPED, command.play)[0],
            "stores something",
        ),
        ([OwnRole.is_confirmed], lambda *_: True, lambda: trouble(FROZEN, command.play)[0], ""),
        ([Arbiter._is_released], lambda *_: True, lambda: trouble(PLANNED, command.play)[0], "the principal"),
    ],
    ids=["epoch", "two connections", "lost principal", "held frames", "commit without a clock", "role", "failover"],
)
def test_what_is_broken_on_purpose_is_found_out(
    monkeypatch: pytest.MonkeyPatch, places: list[Any], broken: Any, story: Callable[[], str], told: str
) -> None:
    for place in places:
        monkeypatch.setattr(place if isinstance(place, str) else f"{place.__module__}.{place.__qualname__}", broken)

    problem = story()

    assert problem
    assert told in problem


@pytest.mark.promise("statements 6")
def test_two_applications_see_one_dialog_of_a_service_that_is_no_exclusive_target() -> None:
    stories = [replace(target_play.draw(seed), is_exclusive=False) for seed in range(1, 11)]
    told = [trouble(story, target_play.play)[0] for story in stories]

    assert any("two applications saw one dialog" in one for one in told)


def test_dialogs_at_the_target_that_a_gateway_does_not_prefer_are_stuck_when_its_refusals_mean_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarder, "REFUSALS", frozenset())
    stories = (replace(target_play.draw(seed), is_meshed=True) for seed in range(1, 101))

    assert "not within" in next(filter(None, (trouble(story, target_play.play)[0] for story in stories)), "")
