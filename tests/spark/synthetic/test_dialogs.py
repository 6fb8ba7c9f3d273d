"""Who talks to whom in a synthetic history, and when."""

import itertools

import numpy as np
import pytest

from broker.forwarding.sample import Sample
from broker.pipeline.synthetic.dialogs import is_sampled, make_dialogs, messages_between
from broker.pipeline.synthetic.rows import guids
from broker.pipeline.synthetic.world import Scenario, make_world

RNG = np.random.default_rng(1)


@pytest.mark.parametrize(("messages", "share"), [(1, 0.0), (10, 1.0), (1_000, 0.0), (5_000, 0.5)])
def test_as_many_messages_as_were_asked_for(messages: int, share: float) -> None:
    """Exactly, and the hot dialog has its share."""
    scenario = Scenario(messages=messages, instances=6, seed=3, hot_share=share)

    dialogs = make_dialogs(scenario, make_world(scenario))

    assert messages == dialogs.messages.sum()
    assert dialogs.messages.min() >= 0
    if share:
        assert int(messages * share) <= dialogs.messages[:2].sum()


def test_the_stretches_make_the_whole() -> None:
    """Every sequence number of every flow once, in order, each within its stretch or a little behind."""
    scenario = Scenario(messages=3_000, instances=6, seed=3, hours=1, hot_share=0.5)
    dialogs = make_dialogs(scenario, make_world(scenario))
    bounds = np.linspace(0, scenario.duration, 8).astype(np.int64)

    parts = [messages_between(dialogs, int(a), int(b), RNG) for a, b in itertools.pairwise(bounds)]

    flow, sequence = (np.concatenate([getattr(part, name) for part in parts]) for name in ("flow", "sequence"))
    expected = [(f, s) for f, count in enumerate(dialogs.messages) for s in range(count)]
    assert expected == sorted(zip(flow.tolist(), sequence.tolist(), strict=True))
    assert all((part.queued >= begin).all() for part, begin in zip(parts, bounds[:-1], strict=True))
    assert max(part.queued.max() for part in parts if part.queued.size) <= scenario.duration


def test_messages_of_a_flow_are_queued_in_order() -> None:
    """A later sequence number is not put in the queue before an earlier one."""
    scenario = Scenario(messages=3_000, instances=6, seed=4)
    dialogs = make_dialogs(scenario, make_world(scenario))

    messages = messages_between(dialogs, 0, scenario.duration, RNG)

    same = np.diff(messages.flow) == 0
    assert (np.diff(messages.queued)[same] >= 0).all()


def test_dialogs_are_sampled_as_instances_do_it() -> None:
    """The same formula on the same bytes."""
    ids = RNG.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (200, 2))
    sample = Sample(0.3)

    assert [one in sample for one in guids(ids).to_pylist()] == is_sampled(ids, 0.3).tolist()
