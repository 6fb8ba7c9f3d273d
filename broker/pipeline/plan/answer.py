"""
The results of `plan`, from a history and a question: what scripts leave open is learnt from the history first.

Two frames are kept in the memory of the executors, the keys and what they come to, because all results are made of
them; they go with the session.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from broker.pipeline.plan.address import learn_addresses
from broker.pipeline.plan.key import clues, route_keys
from broker.pipeline.plan.plan import changes, decided, fates, load, route_use
from broker.pipeline.plan.question import Question
from broker.pipeline.plan.site import Change, change_of, gather
from broker.routing.address import NetworkAddress, parse_address


@dataclass(frozen=True, slots=True)
class Answer:
    """Shape: the frames are PLAN, PLAN_LOAD, PLAN_ROUTES and PLAN_FATES."""

    plan: DataFrame
    plan_load: DataFrame
    plan_routes: DataFrame
    plan_fates: DataFrame

    def frames(self) -> dict[str, DataFrame]:
        """By the names that they are written under."""
        return {name: getattr(self, name) for name in self.__slots__}


def answer(visits: DataFrame, question: Question) -> Answer:
    """
    What would have become of a history (VISIT).

    Runs one job that groups it, and two that look for addresses when there are several instances and none is given.
    """
    keyed = route_keys(visits).persist()
    shown = gather(clues(keyed).collect())
    addresses = dict(question.addresses)
    if not addresses and len(question.before) > 1:
        addresses = _parsed(learn_addresses(visits))
    change = change_of(
        question.before, question.after, shown, now=question.now, addresses=addresses, given=question.databases
    )
    return answer_of_keys(keyed, change)


def answer_of_keys(keyed: DataFrame, change: Change) -> Answer:
    """What would have become of the keys of a history (KEYED)."""
    told = decided(keyed, change).persist()
    return Answer(changes(told), load(told, change.addresses), route_use(told, change), fates(told))


def _parsed(found: dict[str, str]) -> dict[NetworkAddress, str]:
    """Names instead of addresses, as mirrored pairs have, lead nowhere."""
    known: dict[NetworkAddress, str] = {}
    for text, instance in found.items():
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if isinstance(address, NetworkAddress):
            known[address] = instance
    return known
