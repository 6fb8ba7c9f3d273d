"""What workers tell adds up, and does not go down when one of them dies."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.route import MirroredPair
from broker.workers.message import PairKnown, Reached, WorkerReport
from broker.workers.tally import (
    LAG,
    LOST,
    Retired,
    add_addresses,
    add_forwarding,
    add_samples,
    merge_pairs,
    merge_reached,
)

FAR, NEAR = NetworkAddress("far", 4022), NetworkAddress("near", 4022)
FORWARDED, HELD = "broker_messages_forwarded_total", "broker_forward_pool_messages"


def report(forwarded: float, held: int = 0) -> WorkerReport:
    forwarding: dict[str, Any] = {
        "enabled": True,
        "received": {"message": int(forwarded) + held, "ack": 0},
        "forwarded": int(forwarded),
        "delivered": 0,
        "dropped": {},
        "held": held,
        "unaccounted": 0,
    }
    samples: dict[str, Any] = {
        FORWARDED: [(("r", "tcp://far:4022"), forwarded)],
        HELD: [((), float(held))],
        LAG: [((), 0.25)],
    }
    return WorkerReport({"forwarding": forwarding}, samples, [], [], [], [], [])


def summed(samples: list[tuple[tuple[str, ...], float]]) -> float:
    return sum(value for _, value in samples)


def test_samples_of_all_are_together_and_the_worst_lag_counts() -> None:
    added = add_samples([report(3, 1).samples, report(4, 2).samples], {LAG: [((), 0.1)]})

    assert (summed(added[FORWARDED]), summed(added[HELD])) == (7, 3)
    assert added[LAG] == [((), 0.25)]


def test_what_the_supervisor_tells_itself_is_not_added_to() -> None:
    added = add_samples([{"broker_ready": [((), 1.0)]}] * 2, {"broker_ready": [((), 1.0)]})

    assert added["broker_ready"] == [((), 1.0)]


def test_dead_workers_keep_their_counters_and_nothing_else() -> None:
    retired = Retired()
    retired.add(report(3), uncounted_s=0.25)
    retired.add(report(4), uncounted_s=0.5)

    assert retired.told() == {FORWARDED: [(("r", "tcp://far:4022"), 7)]}
    assert retired.forwarding == {"received": {"message": 7, "ack": 0}, "forwarded": 7, "delivered": 0, "dropped": {}}
    assert (retired.lost, retired.uncounted_s) == (0, 0.75)


def test_what_a_worker_held_is_lost_with_it() -> None:
    """So that what came in is told whole, by the status and by the metrics alike."""
    retired = Retired()
    lost = [retired.add(report(3, held=held), uncounted_s=0.0) for held in (5, 0, 2)]

    total = add_forwarding([{**report(1, held=1).status["forwarding"]}, retired.forwarding])

    assert lost == [5, 0, 2]
    assert retired.told()["broker_messages_dropped_total"] == [((LOST,), 7)]
    assert total["received"]["message"] == 18 == total["forwarded"] + total["held"] + total["dropped"][LOST]
    assert total["unaccounted"] == 0


def test_worker_that_died_before_it_told_anything_leaves_only_the_time() -> None:
    retired = Retired()
    retired.add(None, uncounted_s=0.5)

    assert (retired.told(), retired.forwarding, retired.lost, retired.uncounted_s) == ({}, {}, 0, 0.5)


def test_forwarding_is_added_up_by_kind_and_reason() -> None:
    one = {"enabled": True, "received": {"message": 2}, "dropped": {"no route": 1}, "held": 1, "pool_limit_bytes": 9}
    other = {"received": {"message": 3, "ack": 1}, "dropped": {"malformed": 1}, "forwarded": 1, "delivered": 1}

    assert add_forwarding([one, other]) == {
        "received": {"message": 5, "ack": 1},
        "dropped": {"no route": 1, "malformed": 1},
        "held": 1,
        "forwarded": 1,
        "delivered": 1,
        "unaccounted": 1,
    }


def test_address_has_the_best_health_the_problem_if_nobody_reaches_it_and_all_that_is_held() -> None:
    lost = {"health": "suppressed", "problem": "Connection refused", "held": 2}
    fine = {"health": "connected", "problem": "", "held": 3}
    new = {"health": "untried", "problem": "", "held": 0}

    added = add_addresses([{"tcp://b:1": lost, "tcp://a:1": new}, {"tcp://b:1": fine}, {"tcp://a:1": lost}])

    assert added == {
        "tcp://a:1": {"health": "suppressed", "problem": "Connection refused", "held": 2},
        "tcp://b:1": {"health": "connected", "problem": "", "held": 5},
    }
    assert list(added) == ["tcp://a:1", "tcp://b:1"]


def test_what_one_worker_reaches_is_reached() -> None:
    merged = merge_reached(
        [
            [Reached(FAR, "SUPPRESSED", "Connection refused"), Reached(NEAR, "UNTRIED", "")],
            [Reached(FAR, "CONNECTED", ""), Reached(NEAR, "SUPPRESSED", "timed out")],
        ]
    )

    assert merged == {FAR: (Health.CONNECTED, ""), NEAR: (Health.SUPPRESSED, "timed out")}


def test_of_a_pair_the_worker_counts_that_knows_the_principal_of_the_highest_epoch() -> None:
    pair, other = (MirroredPair("//s", UUID(int=n), FAR, NEAR) for n in (1, 2))
    asking, old, new = (PairKnown(pair, hop, epoch, "") for hop, epoch in ((None, 9), (FAR, 1), (NEAR, 2)))
    unknown = PairKnown(other, None, 0, "neither answers")

    assert {pair: new, other: unknown} == merge_pairs([[asking], [new, unknown], [old]])
