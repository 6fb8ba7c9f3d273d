"""
Which instance an address leads to, as a history shows it.

Whoever sends a frame on writes down the address of its next hop, and the instance behind it writes down the same frame,
one hop later. Two frames for each instance and address are looked at, drawn by a hash of their message_id. An address
that led to different instances is told as leading nowhere: nobody knows which of them it means now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame

from broker.flow import Outcome

_LEAVES = tuple(map(str, (Outcome.SENT, Outcome.RESENT, Outcome.FORWARDED)))
_SENDS = frozenset(_LEAVES[:2])


def learn_addresses(visits: DataFrame) -> dict[str, str]:
    """
    The instances of a history (VISIT) by the addresses that others sent to; runs two jobs.

    Addresses whose two frames were both seen no more, or whose instance keeps no journal, are not among them.
    """
    drawn = {row[name] for row in witnesses(visits).collect() for name in ("lowest", "highest")}
    return addresses(witnessed(visits, drawn).collect())


def witnesses(visits: DataFrame) -> DataFrame:
    """Two frames for each instance and address (`lowest` and `highest` hash of the message_id)."""
    is_leaving = F.col("outcome").isin(*_LEAVES) & F.col("adjacent_out").isNotNull()
    return (
        visits.where(is_leaving & F.col("message_id").isNotNull())
        .groupBy("instance", "adjacent_out")
        .agg(F.min(_hash()).alias("lowest"), F.max(_hash()).alias("highest"))
        .select("instance", "adjacent_out", "lowest", "highest")
    )


def witnessed(visits: DataFrame, drawn: Iterable[int]) -> DataFrame:
    """The visits of the frames whose hashes were drawn."""
    return visits.where(_hash().isin(*drawn)).select("message_id", "instance", "outcome", "hop_count", "adjacent_out")


def addresses(rows: Iterable[Any]) -> dict[str, str]:
    """The instances by their addresses, from the visits of some frames."""
    frames: defaultdict[bytes, list[Any]] = defaultdict(list)
    for row in rows:
        frames[bytes(row["message_id"])].append(row)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for visits in frames.values():
        for visit in visits:
            if visit["outcome"] in _LEAVES and visit["adjacent_out"] is not None:
                found[visit["adjacent_out"]] |= _behind(visit, visits)
    return {address: next(iter(names)) for address, names in found.items() if len(names) == 1}


def _behind(visit: Any, visits: Iterable[Any]) -> set[str]:
    """Where a frame was one hop later; the sender and whoever has it first both say 0 hops."""
    hop_count = 0 if visit["outcome"] in _SENDS else visit["hop_count"] + 1
    return {
        other["instance"]
        for other in visits
        if other["hop_count"] == hop_count
        and other["outcome"] not in _SENDS
        and other["outcome"] != str(Outcome.ACKNOWLEDGED)
    }


def _hash() -> Column:
    return F.xxhash64("message_id")
