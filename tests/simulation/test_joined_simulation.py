"""The joined simulation in its short form; `make simulate OF=joined` plays as many stories as one has time for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.forwarding.reroute import Rerouter
from broker.net.link import Link
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers, ProbeSubscribers
from tests.simulation.joined_play import play
from tests.simulation.joined_story import BLOWS, TIERS, draw, smaller
from tests.simulation.machine import Road
from tests.simulation.simulate import trouble
from tests.simulation.story import DAY, Blow, Deed
from tests.support.tiers import stories

SHORT = 45
LOST_WAY = replace(  # one of two gateways is without power, while six dialogs, some by each, send more than TCP keeps
    draw(1),
    tiers=(1, 2),
    is_pair=False,
    road=Road(room=700),
    pool_bytes=1 << 20,
    store_failure=0.0,
    lifetimes=(DAY,) * 6,
    deeds=tuple(Deed(0.1, "shop", "send", number % 6, 350) for number in range(60)),
    blows=tuple(Blow(at, "power", name, "gateway-00", 5.0) for at, name in ((0.5, "gateway-10"), (8.0, "gateway-11"))),
)


@pytest.mark.parametrize("first", stories(SHORT, 15))
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
    for place in ("broker.store.sqlite.transaction.check_epoch", "broker.store.sqlite.write_batch.check_epoch"):
        monkeypatch.setattr(place, lambda _db: None)

    assert trouble(draw(198), play)[0]


def test_instances_that_keep_two_connections_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail: both sides have dialled, and neither connection gives way."""
    monkeypatch.setattr(Peers, "_arbitrate", lambda *_: False)

    assert "two connections" in trouble(draw(23), play)[0]


def test_who_steps_down_and_tells_nobody_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail before the end: a mirror that was started anew takes over, and does not know who asked."""
    monkeypatch.setattr(ProbeSubscribers, "announce", lambda *_: None)

    assert "believes in" in trouble(draw(2), play)[0]


def test_lost_principal_that_is_not_asked_after_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise: the principal is gone, and nobody looks for the next one."""
    monkeypatch.setattr(Mirrors, "on_unserved", lambda *_: None)

    assert "believes in" in trouble(draw(41), play)[0]


def test_link_that_throws_the_end_of_a_cut_frame_away_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail: what comes behind it is no frame any more."""
    monkeypatch.setattr(Link, "finish", lambda link, _rest: setattr(link, "_rest", memoryview(b"")))

    assert "broke the rules" in trouble(draw(3), play)[0]


def test_frames_that_are_held_for_a_lost_link_leave_by_another() -> None:
    assert "" == trouble(LOST_WAY, play)[0]


def test_lost_link_that_is_not_told_at_once_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can fail before the end: what waited for the link waits until the next attempt to connect is over."""
    lose = Peers.on_lost

    def lose_quietly(peers: Peers, link: Link) -> None:
        with monkeypatch.context() as quiet:
            quiet.setattr(peers, "_changed", lambda: None)
            lose(peers, link)

    monkeypatch.setattr(Peers, "on_lost", lose_quietly)

    assert "leads on" in trouble(LOST_WAY, play)[0]


def test_held_frames_that_take_no_better_way_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise: another gateway is connected, and they wait for the one that is gone."""
    monkeypatch.setattr(Rerouter, "by_health", lambda *_: None)

    assert "leads on" in trouble(LOST_WAY, play)[0]


def test_story_is_made_smaller() -> None:
    story = next(story for story in map(draw, range(1, 99)) if len(story.blows) > 2 and sum(story.tiers) > 2)

    while found := next((one for one in smaller(story) if one.blows), None):
        story = found

    assert (1, ()) == (len(story.blows), story.deeds)
