"""
A bound on how many values a label of a metric may take.

Peers choose their names and operators write routes by the thousand, and every value of a label is a series that the
scraper keeps for weeks. The first `VALUES_MAX` values of a label are told, every later one is told as "other"; which
are the first is remembered, so that a counter never moves from one series to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

VALUES_MAX = 500
OTHER = "other"

Labels = tuple[str, ...]
Fold = Callable[[float, float], float]


class LabelCap:
    """Remembers the values told so far; changed by one thread. Shape: `overflows` how often one was told as "other"."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self.overflows = 0
        self._values_max = values_max
        self._told: dict[tuple[str, int], set[str]] = {}

    def fold(self, metric: str, samples: Iterable[tuple[Labels, float]], fold: Fold) -> dict[Labels, float]:
        """
        The samples of a metric with labels within the bound.

        Args:
            metric: Its name.
            samples: Labels and value; labels may repeat.
            fold: What becomes of two values with the same labels: their sum, or the lesser.
        """
        folded: dict[Labels, float] = {}
        for labels, value in samples:
            capped = self.cap(metric, labels)
            folded[capped] = fold(folded[capped], value) if capped in folded else value
        return folded

    def cap(self, metric: str, labels: Labels) -> Labels:
        """Labels within the bound."""
        return tuple([self._cap(metric, position, label) for position, label in enumerate(labels)])

    def _cap(self, metric: str, position: int, label: str) -> str:
        told = self._told.setdefault((metric, position), set())
        if label in told:
            return label
        if len(told) < self._values_max:
            told.add(label)
            return label
        self.overflows += 1
        return OTHER
