"""What a terminal tells of a history: the worst first, harm marked, nothing of what is not there."""

from __future__ import annotations

from typing import Any

from broker.observe.planned_history import ROWS_SHOWN, history_harm, history_lines

NOTHING: dict[str, Any] = {
    "files": ["1 files of 1 instances read, 9 visits"],
    "fates": {},
    "unplanned": {},
    "harmed": {"conversations": 0, "frames": 0},
    "loops": {"conversations": 0, "frames": 0},
    "changes": [],
    "more_changes": 0,
    "load": [],
    "unused": [],
    "more_unused": 0,
}
COUNTS = "a conversation counts in each direction, and again when it has found its target"
CHANGE: dict[str, Any] = {
    "instance": "a",
    "database": None,
    "to_service": "S",
    "from_target": False,
    "fate": "moves",
    "is_harm": True,
    "is_loop": False,
    "outcome_before": "forwarded",
    "route_before": "r",
    "next_before": ["tcp://one:4022"],
    "outcome_after": "dropped",
    "route_after": None,
    "next_after": [],
    "conversations": 2,
    "frames": 3_000,
}


def lines(**told: Any) -> list[str]:
    return [f"{line.mark} {line.text}".strip() for line in history_lines(NOTHING | told) if line.text]


def test_a_history_of_nothing_is_its_files() -> None:
    assert ["In the history", COUNTS, *NOTHING["files"]] == lines()
    assert [] == history_harm(NOTHING)


def test_fates_are_told_the_worst_first_and_what_nobody_knows_last() -> None:
    counts = {"conversations": 1, "frames": 2_000}

    told = lines(fates={"keeps its target": counts, "moves": counts}, unplanned={"columns are missing": counts})

    assert ["moves", "keeps its target", "cannot be told: columns are missing"] == [
        line.partition("2,000 frames  ")[2] for line in told[3:]
    ]


def test_a_change_tells_both_ways() -> None:
    assert [
        "! 2 conversations, 3,000 frames in transit, to S: moves",
        "was:       forwarded to tcp://one:4022 by route r",
        "would be:  dropped",
    ] == lines(changes=[CHANGE])[3:]


def test_a_loop_is_harm_and_other_changes_are_not() -> None:
    harmless = CHANGE | {"is_harm": False, "database": "orders", "conversations": 1}

    told = lines(changes=[harmless, harmless | {"is_loop": True}])

    assert "· 1 conversation, 3,000 frames of orders, to S: moves" == told[3]
    assert "! 1 conversation, 3,000 frames of orders, to S: moves, and goes round" == told[6]


def test_what_is_left_out_is_counted() -> None:
    route = {"instance": "a", "route_table": "msdb", "route": "r"}
    hop = {"next_hop": None, "frames_before": 1, "frames_after": 0}
    many = ROWS_SHOWN + 2

    told = lines(changes=[CHANGE] * many, more_changes=5, load=[hop] * many, unused=[route] * many, more_unused=5)

    assert "and 7 more changes" in told
    assert "and 2 more" in told
    assert told[-1].startswith("Routes that nothing in it would use: msdb.r, ")
    assert told[-1].endswith(" and 7 more")


def test_harm_is_told_in_parts_of_a_sentence() -> None:
    counts = {"conversations": 1, "frames": 2}

    assert [
        "in the history up to 1 conversation would have been harmed",
        "in the history up to 1 conversation would have gone round",
    ] == history_harm(NOTHING | {"harmed": counts, "loops": counts})
