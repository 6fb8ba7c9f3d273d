"""Rows of another hand: what is no route is left out, whatever is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.catalog.catalog import CHUNK_ROWS, sound_rows, stored_route
from broker.routing.address import NetworkAddress
from broker.routing.route import Route, row_of

GOOD: list[Any] = ["r", "S", bytes(15) + b"\1", 1.0e9, "tcp://a:1", "tcp://b:1", 5]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, b"r"),
        (1, 7),
        (2, b"short"),
        (2, "text"),
        (3, "never"),
        (3, float("inf")),
        (3, -1.0),
        (4, "nonsense"),
        (4, 5),
        (5, "LOCAL"),
        (5, ""),
        (6, 0),
        (6, None),
    ],
)
def test_row_that_is_no_route_is_left_out_with_a_warning(place: int, value: object) -> None:
    odd: Any = tuple(value if at == place else part for at, part in enumerate(GOOD))
    good: Any = tuple(GOOD)

    with capture_logs() as logs:
        rows = list(sound_rows([good, odd, good], database="orders"))

    assert rows == [good, good]
    assert stored_route(odd) is None
    assert [(entry["event"], entry["database"], entry["route"]) for entry in logs] == [
        ("stored route ignored", "orders", str(odd[0]))
    ]


def test_rows_keep_their_order_through_chunks() -> None:
    rows = [row_of(Route(str(number), NetworkAddress("a"))) for number in range(2 * CHUNK_ROWS + 1)]

    assert list(sound_rows(iter(rows), database="orders")) == rows


def test_route_comes_back() -> None:
    route = Route("r", NetworkAddress("a"), "S")

    assert (stored_route(row_of(route)), stored_route(None)) == (route, None)
