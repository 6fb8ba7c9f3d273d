"""
The first of each kind of finding, and how many more there are.

A script of a million routes can have the same thing wrong a million times; nobody reads that, and nothing should have
to hold it. A kind is a code and the file in which it was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

KEPT_MAX = 1000  # of one kind in a report: more than anybody corrects by hand, and a megabyte at most
SHOWN_MAX = 20  # of one kind in a table: two kinds still fit a screen that scrolls

Kind: TypeAlias = tuple[str, str | None]

_T = TypeVar("_T")


def first_of_each(found: Iterable[_T], kind_of: Callable[[_T], Kind], *, most: int) -> tuple[list[_T], dict[Kind, int]]:
    """
    Keep the first of each kind, in their order.

    Args:
        found: Looked at once; what is not kept is let go at once.
        kind_of: Code and file of one of them; no file is None.
        most: How many of one kind are kept.

    Returns:
        What is kept, and how many others there are of the kinds that have more.
    """
    seen: Counter[Kind] = Counter()
    kept = []
    for one in found:
        kind = kind_of(one)
        seen[kind] += 1
        if seen[kind] <= most:
            kept.append(one)
    return kept, {kind: count - most for kind, count in seen.items() if count > most}
