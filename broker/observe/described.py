"""What the contract says of one metric."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from broker.observe.label import Fold, Labels


@dataclass(frozen=True, slots=True)
class Described:
    """
    One metric of the contract.

    Shape: `name` as scraped; a counter's ends in `_total`; `fold` joins samples whose labels became equal.
    """

    name: str
    help: str
    labels: Labels = ()
    fold: Fold = operator.add

    @property
    def is_counter(self) -> bool:
        """Whether it only grows while the instance runs; else it is a gauge."""
        return self.name.endswith("_total")
