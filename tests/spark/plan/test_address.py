"""Which instance an address leads to: by frames that were seen on both sides of a link."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.pipeline.plan.address import addresses, learn_addresses, witnessed, witnesses
from tests.spark.visiting import guid, visits

A, B, C = ({"adjacent_out": f"tcp://{name}:4022"} for name in "abc")
SENT: dict[str, Any] = {"instance": "s", "outcome": "sent"}
FIRST: dict[str, Any] = {"instance": "a", "outcome": "forwarded"}
LAST: dict[str, Any] = {"instance": "t", "outcome": "delivered", "hop_count": 1}


def test_every_hop_of_a_way_shows_who_is_behind_an_address(spark: SparkSession) -> None:
    way: list[dict[str, Any]] = [SENT | A, FIRST | B, {"instance": "b", "hop_count": 1} | C, LAST | {"hop_count": 2}]
    way += [SENT | {"outcome": "acknowledged"}, LAST | {"instance": "z", "hop_count": 9}]

    assert {"tcp://a:4022": "a", "tcp://b:4022": "b", "tcp://c:4022": "t"} == learn_addresses(visits(spark, *way))


def test_frames_that_were_lost_or_went_where_no_journal_is_kept_show_nothing(spark: SparkSession) -> None:
    assert {} == learn_addresses(visits(spark, SENT | A, LAST | {"message_id": 2}))


def test_two_frames_of_each_link_are_looked_at(spark: SparkSession) -> None:
    history = visits(spark, *(one | {"message_id": n} for n in range(50) for one in (SENT | A, FIRST)))

    [row] = witnesses(history).collect()

    found = witnessed(history, [row["lowest"], row["highest"]]).collect()
    assert (4, 2) == (len(found), len({bytes(one["message_id"]) for one in found}))


def test_a_history_of_nothing_shows_nothing(spark: SparkSession) -> None:
    assert {} == learn_addresses(visits(spark, SENT))


@pytest.mark.parametrize(("second", "expected"), [("a", {"tcp://a:4022": "a"}), ("z", {})])
def test_an_address_of_several_instances_leads_nowhere(second: str, expected: dict[str, str]) -> None:
    rows = [
        one | {"message_id": guid(number), "hop_count": 0, "adjacent_out": one.get("adjacent_out")}
        for number, name in enumerate(("a", second))
        for one in (SENT | A, FIRST | {"instance": name})
    ]

    assert expected == addresses(rows)
