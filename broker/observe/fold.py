"""
Lists of unknown length, cut to what a person can look at: the biggest rows, and the sums of the rest.

What is told comes from peers and applications, so names have a bound as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NAME_MAX = 200  # characters of a name that are shown

Row = Mapping[str, Any]


def shorten(text: str, most: int = NAME_MAX) -> str:
    """A text of at most so many characters; one that was longer says by how much."""
    if len(text) <= most:
        return text
    end = f"… ({len(text):,} characters)"
    return text[: most - len(end)] + end


def fold(rows: Sequence[Row], most: int, *, weight: Callable[[Row], Any], sums: Sequence[str] = ()) -> dict[str, Any]:
    """
    The heaviest rows, and what the rest comes to.

    Args:
        rows: All of them.
        most: Rows that are told.
        weight: What a row counts; of equals the first are told.
        sums: Columns that are added up over the rows that are not told; what is not known counts as 0.

    Returns:
        `count` of all rows, `rows` the heaviest first, `folded` the `count` and the sums of the others.

    Cost: O(rows * log most).
    """
    kept = heapq.nlargest(most, rows, key=weight)
    left = len(rows) - len(kept)
    folded: dict[str, Any] = {"count": left}
    for column in sums:
        whole = sum(row[column] or 0 for row in rows) if left else 0
        folded[column] = round(whole - sum(row[column] or 0 for row in kept), 3) if left else 0
    return {"count": len(rows), "rows": [cut(row) for row in kept], "folded": folded}


def cut(row: Row) -> dict[str, Any]:
    """A row whose texts have a bound."""
    return {name: shorten(value) if isinstance(value, str) else value for name, value in row.items()}
