"""How long acknowledgements took is counted by next hop, and the next hops are bounded."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.dialog import send_queue as trips
from broker.dialog.send_queue import MICROSECONDS, Trips, note_trip
from broker.forwarding.hop import bucket
from broker.routing.address import NetworkAddress

NEAR, FAR = NetworkAddress("near", 1), NetworkAddress("far", 1)


def test_trip_is_counted_in_its_bucket_and_in_the_sum() -> None:
    counted: Trips = Counter()

    note_trip(counted, NEAR, 0.003)
    note_trip(counted, NEAR, 0.004)
    note_trip(counted, None, 1.5)

    assert counted == {
        (NEAR, bucket(0.003)): 2,
        (NEAR, MICROSECONDS): 7000,
        (None, bucket(1.5)): 1,
        (None, MICROSECONDS): 1_500_000,
    }


def test_next_hops_past_the_bound_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trips, "ENTRIES_MAX", 2)
    counted: Trips = Counter()

    note_trip(counted, NEAR, 0.003)
    note_trip(counted, FAR, 0.003)
    note_trip(counted, NEAR, 0.003)

    assert counted[NEAR, bucket(0.003)] == 2
    assert counted[None, bucket(0.003)] == 1
    assert not [key for key in counted if key[0] == FAR]
