"""The ledger: what adds up, what does not, and what nobody can know."""

import random
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from broker.pipeline.reconcile import BEHIND_SECONDS, GRACE_SECONDS, PROBLEMS_MAX, reconcile
from broker.pipeline.results import RECONCILE
from tests.spark.visiting import START, visits

SECOND = 1_000_000
LATER = 3600 * SECOND  # when the history ends, unless a test says otherwise
OUTCOMES = ("sent", "resent", "forwarded", "delivered", "duplicate", "dropped", "acknowledged", "of a later version")
COUNTS = [name for name in RECONCILE.names[4:] if name not in {"adds_up", "problems"}]


def visit(outcome: str, at: int = 0, **columns: Any) -> dict[str, Any]:
    code = {"code": 11289, "reason": "pool limit exceeded"} if outcome == "dropped" else {}
    return {"outcome": outcome, "entered_at": at, "left_at": at, **code, **columns}


def ledger(spark: SparkSession, *rows: dict[str, Any], until: int = LATER, grace: int = GRACE_SECONDS) -> list[Row]:
    """The rows of the dialogs, then the total."""
    frame = reconcile(visits(spark, *rows), grace_seconds=grace, until=START + timedelta(microseconds=until))
    return sorted(frame.collect(), key=lambda row: (row.conversation_id is None, row.conversation_id, row.from_target))


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, int], bool | None, list[tuple[Any, ...]]]] = {
    "dropped for good": (
        [
            visit("sent"),
            visit("dropped", 1),
            visit("resent", 2, message_id=2),
            visit("dropped", 3, message_id=2, code=9798),
        ],
        {"sent": 1, "missing": 1, "transmissions": 2, "resent": 1, "dropped": 2},
        False,
        [(0, 0, "missing", "no route")],
    ),
    "dropped by a number that nobody knows": (
        [visit("sent"), visit("dropped", code=4711)],
        {"sent": 1, "missing": 1, "transmissions": 1, "dropped": 1},
        False,
        [(0, 0, "missing", "4711")],
    ),
    "still on its way": (
        [visit("sent", LATER - GRACE_SECONDS * SECOND + 1)],
        {"sent": 1, "under_way": 1, "transmissions": 1},
        True,
        [],
    ),
    "just too long ago": (
        [visit("sent", LATER - GRACE_SECONDS * SECOND)],
        {"sent": 1, "missing": 1, "transmissions": 1, "lost": 1},
        False,
        [(0, 0, "missing", None)],
    ),
    "delivered twice by one transmission": (
        [visit("sent"), visit("delivered"), visit("delivered", instance="b")],
        {"sent": 1, "delivered": 1, "doubled": 1, "transmissions": 1},
        False,
        [(0, 0, "doubled", None)],
    ),
}


def test_each_rule_that_the_oracle_does_not_meet(spark: SparkSession) -> None:
    """What is counted, whether it adds up, and what is told of it; each case is a dialog of its own."""
    rows = [
        row | {"conversation_id": number, "message_id": 100 * number + row.get("message_id", 1)}
        for number, (history, *_) in enumerate(CASES.values())
        for row in history
    ]

    *found, _ = ledger(spark, *rows)

    told = [
        ({name: row[name] for name in COUNTS if row[name]}, row.adds_up, list(map(tuple, row.problems)))
        for row in found
    ]
    assert {name: tuple(expected) for name, (_, *expected) in CASES.items()} == dict(zip(CASES, told, strict=True))


def test_a_total_of_what_nobody_knows_does_not_say_that_it_adds_up(spark: SparkSession) -> None:
    """One dialog that adds up is enough, one that fails is too much."""
    unknown, good, bad = (
        [visit("delivered")],
        [visit("sent", conversation_id=2, message_id=2), visit("delivered", conversation_id=2, message_id=2)],
        [visit("sent", conversation_id=3, message_id=3)],
    )

    verdicts = [ledger(spark, *rows)[-1].adds_up for rows in (unknown, unknown + good, unknown + good + bad)]

    assert [None, True, False] == verdicts


@pytest.mark.parametrize(("grace", "fate"), [(199, "missing"), (201, "under_way")])
def test_the_end_of_the_history_is_its_newest_instant(spark: SparkSession, grace: int, fate: str) -> None:
    """Of any frame, when nothing else is said."""
    rows = [visit("sent"), visit("delivered", 200 * SECOND, kind="ack", conversation_id=2)]

    row = reconcile(visits(spark, *rows), grace_seconds=grace).collect()[0]

    assert 1 == row[fate]


def test_the_first_problems_of_a_dialog_are_told(spark: SparkSession) -> None:
    """In order, so many, and no more; all are counted."""
    rows = [
        visit("sent", message_id=number, sequence_number=number) for number in random.Random(1).sample(range(99), 50)
    ]

    row = ledger(spark, *rows)[0]

    assert 50 == row.missing
    assert sorted(one["sequence_number"] for one in rows)[:PROBLEMS_MAX] == [
        one.sequence_number for one in row.problems
    ]


# --- against an oracle ---


def oracle(rows: list[dict[str, Any]], *, until: int, grace: int) -> dict[tuple[int, bool], dict[str, Any]]:
    """The same, slowly: by dialog and direction."""
    ledgers: dict[tuple[int, bool], dict[str, Any]] = {}
    for key in {(row["conversation_id"], row["from_target"]) for row in rows}:
        own = [row for row in rows if (row["conversation_id"], row["from_target"]) == key]
        sent = {(row["sequence_number"], row["fragment_number"]) for row in own if row["outcome"] in {"sent", "resent"}}
        delivered = {(row["sequence_number"], row["fragment_number"]) for row in own if row["outcome"] == "delivered"}
        counts = dict.fromkeys(COUNTS, 0)
        listed = []
        for place in sorted({(row["sequence_number"], row["fragment_number"]) for row in own}):
            here = [row for row in own if (row["sequence_number"], row["fragment_number"]) == place]
            outcomes = [row["outcome"] for row in here]
            newest = max(row["left_at"] for row in here)
            problem = None
            if "delivered" in outcomes:
                counts["delivered"] += 1
            elif "acknowledged" in outcomes:
                counts["acknowledged"] += 1
            elif place in sent and newest > until - grace * SECOND:
                counts["under_way"] += 1
            elif place in sent:
                counts["missing"] += 1
                problem = "missing"
            if place in sent:
                counts["sent"] += 1
            elif {"delivered", "acknowledged"} & set(outcomes):
                is_behind = newest > until - BEHIND_SECONDS * SECOND and (not sent or place[0] >= max(sent)[0])
                if sent and not is_behind:
                    counts["invented"] += 1
                    problem = "invented"
                else:
                    counts["untold"] += 1
            if outcomes.count("delivered") > 1:
                counts["doubled"] += 1
                problem = "doubled"
            if problem:
                listed.append((*place, problem))
        for message in {row["message_id"] for row in own}:
            visited = [row for row in own if row["message_id"] == message]
            outcomes = [row["outcome"] for row in visited]
            counts["transmissions"] += 1
            counts["resent"] += "resent" in outcomes
            counts["dropped"] += "dropped" in outcomes
            counts["duplicates"] += "duplicate" in outcomes
            place = (visited[0]["sequence_number"], visited[0]["fragment_number"])
            is_over = {"delivered", "duplicate", "dropped"} & set(outcomes)
            is_over |= {"acknowledged"} & set(outcomes) - ({"acknowledged"} if place in delivered else set())
            counts["lost"] += not is_over and max(row["left_at"] for row in visited) <= until - grace * SECOND
        faults = counts["missing"] + counts["doubled"] + counts["invented"]
        adds_up = faults == 0 if faults or counts["sent"] else None
        ledgers[key] = counts | {"adds_up": adds_up, "problems": listed[:PROBLEMS_MAX]}
    return ledgers


def history(seed: int) -> list[dict[str, Any]]:
    """Visits without rhyme or reason, many of one dialog, so that every rule is met, alone and with others."""
    dice = random.Random(seed)
    dialogs = [(1, False)] * 6 + [(number, bool(number % 2)) for number in range(2, 9)]
    rows = []
    for message in range(400):
        conversation, from_target = dice.choice(dialogs)
        place = {"sequence_number": dice.randrange(40), "fragment_number": dice.choice((0, 0, 0, 1))}
        for outcome in dice.sample(OUTCOMES, dice.choice((1, 1, 2, 3))):
            if outcome in {"sent", "resent"} and conversation % 4 == 3:
                continue
            frame = {"message_id": message, "conversation_id": conversation, "from_target": from_target}
            rows.append(visit(outcome, dice.randrange(LATER // SECOND) * SECOND, **frame, **place))
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_a_random_history_adds_up_as_the_oracle_says(spark: SparkSession, seed: int) -> None:
    """Every count and every problem, and the sum of both sides of the ledger."""
    rows = history(seed)

    *found, total = ledger(spark, *rows, grace=600)

    expected = oracle(rows, until=LATER, grace=600)
    assert expected == {
        (int.from_bytes(row.conversation_id, "big"), row.from_target): {name: row[name] for name in COUNTS}
        | {"adds_up": row.adds_up, "problems": [tuple(one)[:3] for one in row.problems]}
        for row in found
    }
    assert {name: sum(one[name] for one in expected.values()) for name in COUNTS} == {
        name: total[name] for name in COUNTS
    }
    known = total.delivered + total.acknowledged + total.under_way + total.missing
    assert known == total.sent + total.untold + total.invented


def test_acknowledgements_and_faults_are_no_messages(spark: SparkSession) -> None:
    """They are sent once and nobody repeats them."""
    assert [] == ledger(
        spark, visit("sent", kind="ack"), visit("sent", kind="fault"), visit("sent", conversation_id=None)
    )
