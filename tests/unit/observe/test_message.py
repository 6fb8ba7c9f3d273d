"""The view of the numbers."""

from __future__ import annotations

from broker.observe.query import SELF_MADE, SystemViews
from broker.observe.views import MEMORY_VIEWS, MESSAGE_COLUMNS, catalogue, message_rows

ROWS = [dict(zip(MESSAGE_COLUMNS, row, strict=True)) for row in message_rows()]


def test_each_number_has_a_row_in_order() -> None:
    expected = [entry.number for entry in catalogue().values() if entry.number]

    assert expected == [row["message_id"] for row in ROWS]
    assert sorted(expected) == expected


def test_a_row_says_what_a_number_means_and_what_to_do() -> None:
    [row] = [row for row in ROWS if row["message_id"] == 11285]

    assert ("hops exhausted", 1033, 16, False) == (
        row["reason"],
        row["language_id"],
        row["severity"],
        row["is_event_logged"],
    )
    assert "gateways" in str(row["text"])
    assert "max_hops" in str(row["remedy"])


def test_a_number_is_asked_for_as_a_number() -> None:
    snapshots = {name: tuple for name in MEMORY_VIEWS if name not in SELF_MADE}
    views = SystemViews(databases={}, snapshots=snapshots, transmission_statuses=dict)

    found = views.select("SELECT message_id FROM sys.messages WHERE message_id IN (102, 9744)", database=None).rows

    assert [(102,), (9744,)] == found


def test_links_of_pages_are_words() -> None:
    assert [] == [row["message_id"] for row in ROWS if "](" in f"{row['text']}{row['remedy']}"]
