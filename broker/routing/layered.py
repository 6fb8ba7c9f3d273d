"""
A mapping that never changes, of which a changed copy costs what was changed.

Readers hold on to the one they have while a writer makes the next one, so a swap is one assignment. The big part is
shared by all copies; changes lie in a small dictionary over it, which is folded in when it has grown to a fraction of
the whole, so that a million entries are copied once for many changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

FOLD_FRACTION = 8  # changes are folded in when they are more than this part of the whole
FOLD_MIN = 64  # below it folding is not worth the thought

K = TypeVar("K")
V = TypeVar("V")


class Layered(Generic[K, V]):
    """
    Keys and values, looked up in constant time.

    Cost: `get` two look-ups at most; `changed` the changes so far, and once in a while the whole.
    """

    __slots__ = ("_base", "_changes")

    def __init__(self, base: dict[K, V], changes: dict[K, V | None] | None = None) -> None:
        self._base = base
        self._changes = changes or {}

    def get(self, key: K) -> V | None:
        """The value of a key, None when there is none."""
        if self._changes and key in self._changes:
            return self._changes[key]
        return self._base.get(key)

    def changed(self, changes: Mapping[K, V | None]) -> Layered[K, V]:
        """A copy in which these keys have these values, and those with None are gone."""
        merged = {**self._changes, **changes}
        if len(merged) <= max(FOLD_MIN, len(self._base) // FOLD_FRACTION):
            return Layered(self._base, merged)
        base = {**self._base, **{key: value for key, value in merged.items() if value is not None}}
        for key, value in merged.items():
            if value is None:
                base.pop(key, None)
        return Layered(base)

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Every key with its value."""
        for key, value in self._base.items():
            if key not in self._changes:
                yield key, value
        for key, changed in self._changes.items():
            if changed is not None:
                yield key, changed
