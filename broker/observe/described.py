"""What the contract says of one metric, and the form in which its values are read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from broker.observe.instance import Running
from broker.observe.label import Fold, Labels

Samples: TypeAlias = Iterable[tuple[Labels, float]]
Reader: TypeAlias = Callable[[Running], Samples]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """
    One metric of the contract.

    Shape: `name` as scraped; a counter's ends in `_total`; `fold` joins samples whose labels became equal;
    `is_histogram` when its samples have one label more, as `broker.observe.histogram` says.
    """

    name: str
    help: str
    labels: Labels = ()
    fold: Fold = operator.add
    is_histogram: bool = False

    @property
    def is_counter(self) -> bool:
        """Whether it only grows while the instance runs."""
        return self.is_histogram or self.name.endswith("_total")

    @property
    def kind(self) -> str:
        """The type under which it is scraped."""
        return "histogram" if self.is_histogram else "counter" if self.is_counter else "gauge"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names under which its values are scraped."""
        return tuple(self.name + part for part in ("_bucket", "_sum", "_count")) if self.is_histogram else (self.name,)


def single(value: Callable[[Running], float]) -> Reader:
    """The reader of a metric without labels."""
    return lambda instance: [((), value(instance))]
