"""The truth of dialogs, against what DuckDB makes of the files."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import duck
from tests.support.synthetic import history

SAME = {"resent": "resends", "dropped": "drops"} | {
    name: name
    for name in (
        *("conversation_id", "from_target", "from_service", "to_service", "sent", "delivered", "acknowledged"),
        *("under_way", "missing", "doubled", "transmissions", "lost", "duplicates"),
    )
}


@pytest.mark.parametrize(
    "asked", [{}, {"clocks_apart": 100.0}, {"sample": 0.3}, {"doubled": 0.5, "abandoned": 0.05}], ids=str
)
def test_an_independent_engine_finds_the_same_ledger(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Every count of every dialog and direction."""
    made = history(tmp_path / "h", **asked)

    found = [
        row for row in duck.rows(duck.reconcile(made.files), "conversation_id", "from_target") if row["from_service"]
    ]

    truth = duck.rows(made.truth("flows"), "conversation_id", "from_target")
    assert [[row[name] for name in SAME.values()] for row in truth] == [[row[name] for name in SAME] for row in found]


def test_the_sums_are_those_of_the_history(tmp_path: Path) -> None:
    """As many messages as were asked for; what was sent is delivered, missing or under way."""
    made = history(tmp_path / "h", messages=3_000, doubled=0.5, abandoned=0.01)
    rows = made.truth("flows").to_pylist()
    total = {name: sum(row[name] for row in rows) for name in ("messages", "sent", "delivered", "missing", "under_way")}

    assert 3_000 - 5 <= total["messages"] <= 3_000  # what is queued at the very end is not sent any more
    assert total["sent"] == total["delivered"] + total["missing"] + total["under_way"]
    assert total["missing"] > 10
    assert sum(row["doubled"] for row in rows) > 0
    undelivered = made.truth("undelivered").to_pylist()
    assert [total["missing"], total["under_way"]] == [
        sum(row["is_missing"] == wanted for row in undelivered) for wanted in (True, False)
    ]


@pytest.mark.parametrize("asked", [{}, {"clocks_apart": 120.0, "seed": 4, "instances": 12}, {"sample": 0.3}], ids=str)
def test_an_independent_engine_finds_the_same_dialogs(tmp_path: Path, asked: dict[str, Any]) -> None:
    """How much there was of them, and when it began and ended by the clocks of the instances."""
    made, key = history(tmp_path / "h", **asked), ("conversation_id", "from_target")
    same = (*key, "transmissions", "resends", "duplicates", "drops", "bytes", "first_at", "last_at")

    found = duck.rows(duck.dialogs(made.files), *key)

    truth = duck.rows(made.truth("flows"), *key)
    assert [[row[name] for name in same] for row in truth] == [[row[name] for name in same] for row in found]
