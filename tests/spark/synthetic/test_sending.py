"""Places of a synthetic history: sent until they are acknowledged, delivered once."""

import dataclasses

import numpy as np

from broker.flow import Outcome
from broker.pipeline.synthetic.dialogs import make_dialogs
from broker.pipeline.synthetic.sending import Sending, Sent, known_of
from broker.pipeline.synthetic.transit import Kind, code_of
from broker.pipeline.synthetic.world import NEVER, Scenario, make_world

LOSSY = Scenario(messages=2_000, instances=9, seed=6, hours=2, lost=0.1, abandoned=0.0)


def sending(scenario: Scenario) -> Sent:
    world = make_world(scenario)
    dialogs = make_dialogs(scenario, world)
    return Sending(dialogs, world, scenario, np.random.default_rng(7)).between(0, scenario.duration)


def deliveries(sent: Sent) -> list[int]:
    """How often each place was delivered."""
    delivered = sent.visits.transmission[sent.visits.outcome == code_of(Outcome.DELIVERED)]
    message = delivered[sent.frames.kind[delivered] == Kind.MESSAGE]
    return [int(count) for count in np.bincount(sent.frames.place[message], minlength=sent.places.flow.size)]


def test_every_place_is_delivered_once_whatever_links_lose() -> None:
    """Unless the history ends first."""
    sent = sending(LOSSY)

    in_time = sent.places.arrived < NEVER
    assert [int(is_in) for is_in in in_time] == deliveries(sent)
    assert in_time.mean() > 0.99


def test_a_place_is_sent_again_until_its_sender_knows() -> None:
    """There are resends, and none leaves behind the acknowledgement but one that had to wait for its next hop."""
    sent = sending(LOSSY)
    resends = np.flatnonzero(sent.frames.is_resend)

    outcome = sent.visits.outcome[sent.visits.step == 0]

    assert resends.size == (outcome == code_of(Outcome.RESENT)).sum() > 0


def test_what_is_abandoned_is_sent_once_and_lost() -> None:
    """By every sender, when all is abandoned."""
    sent = sending(dataclasses.replace(LOSSY, abandoned=1.0))

    assert not any(deliveries(sent))
    assert not sent.frames.is_resend.any()


def test_doubled_ones_are_delivered_more_than_once() -> None:
    """All duplicates, when that is asked for."""
    sent = sending(dataclasses.replace(LOSSY, doubled=1.0))

    assert max(deliveries(sent)) > 1
    assert not (sent.visits.outcome == code_of(Outcome.DUPLICATE)).any()


def test_visits_behind_the_end_are_not_known() -> None:
    """Nor those of dialogs that are not sampled, but for drops."""
    sent = sending(LOSSY)
    nobody = np.zeros(sent.frames.flow.max() + 1, np.bool_)

    known = known_of(sent, LOSSY.duration // 2, ~nobody)
    drops = known_of(sent, LOSSY.duration, nobody)

    assert known.left.max() < LOSSY.duration // 2
    assert {code_of(Outcome.DROPPED)} == set(drops.outcome.tolist())
