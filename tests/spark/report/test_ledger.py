"""The ledger's total, what does not add up, who talks most."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from broker.pipeline.report.digest import LedgerTotal
from broker.pipeline.report.tables import TALKERS_MAX, balance, imbalances, talkers
from tests.spark.resulting import result, small

COUNTS = dict.fromkeys(LedgerTotal.__dataclass_fields__, 0)


def test_the_balance_is_the_total(spark: SparkSession) -> None:
    found = balance(small(spark)["reconcile"])

    assert found == LedgerTotal(sent=4, delivered=3, missing=1, transmissions=5, dropped=2, lost=1, adds_up=False)


def test_no_messages_have_no_balance(spark: SparkSession) -> None:
    assert balance(result(spark, "reconcile")) is None


def test_a_balance_that_cannot_be_told_stays_so(spark: SparkSession) -> None:
    found = balance(result(spark, "reconcile", {**COUNTS, "adds_up": None}))

    assert found is not None
    assert found.adds_up is None


def test_the_worst_imbalance_comes_first(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [
        {**COUNTS, "conversation_id": 1, "from_target": False, "adds_up": True},
        {**COUNTS, "conversation_id": 2, "from_target": False, "adds_up": False, "missing": 1},
        {**COUNTS, "conversation_id": 3, "from_target": True, "adds_up": False, "doubled": 5},
        {**COUNTS, "conversation_id": 4, "from_target": False, "adds_up": None},
    ]

    found = imbalances(result(spark, "reconcile", *rows))

    assert ["3", "2"] == [one.conversation[-1] for one in found.rows]
    assert 2 == found.total


def test_problems_are_told_in_words(spark: SparkSession) -> None:
    [found] = imbalances(small(spark)["reconcile"]).rows

    assert ("missing: message 3, dropped last: no route",) == found.problems


def test_services_are_summed_and_conversations_are_few(spark: SparkSession) -> None:
    row = {"from_service": "a", "to_service": "b", "messages": 2, "resends": 0, "from_target": False}
    rows = [{**row, "conversation_id": number, "bytes": number} for number in range(1, 31)]

    services, single = talkers(result(spark, "dialogs", *rows))

    [pair] = services.rows
    assert (60, 465, 30) == (pair.messages, pair.bytes, pair.dialogs)
    assert TALKERS_MAX == len(single.rows)
    assert 30 == single.rows[0].bytes
    assert "00000000-0000-0000-0000-00000000001e" == single.rows[0].conversation
