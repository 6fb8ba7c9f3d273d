"""The views about the views."""

from __future__ import annotations

from broker.observe.views import COLUMN_COLUMNS, VIEW_COLUMNS, column_rows, view_rows

OF_FILE = {"sys.routes": ("name", "address")}
OF_INSTANCE = {"sys.databases": ("name",)}


def test_each_view_has_a_row_that_says_whether_it_is_of_the_instance() -> None:
    rows = [dict(zip(VIEW_COLUMNS, row, strict=True)) for row in view_rows(OF_FILE, OF_INSTANCE)]

    assert [("databases", -1, True), ("routes", -2, False)] == [
        (row["name"], row["object_id"], row["is_instance"]) for row in rows
    ]


def test_each_column_has_a_row_in_its_place_under_the_number_of_its_view() -> None:
    rows = [dict(zip(COLUMN_COLUMNS, row, strict=True)) for row in column_rows(OF_FILE, OF_INSTANCE)]

    assert [(-1, "databases", "name", 1), (-2, "routes", "name", 1), (-2, "routes", "address", 2)] == [
        (row["object_id"], row["view_name"], row["name"], row["column_id"]) for row in rows
    ]
