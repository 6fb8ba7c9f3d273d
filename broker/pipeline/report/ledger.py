"""Small tables out of `reconcile` and `dialogs`: what adds up, who talks most."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import DataFrame

from broker.pipeline.report.digest import LISTED_MAX, Imbalance, LedgerTotal, Listing, Talker

TALKERS_MAX = 10
_PROBLEMS_SHOWN = 3
_BALANCE = tuple(LedgerTotal.__dataclass_fields__)


def balance(reconcile: DataFrame) -> LedgerTotal | None:
    """The ledger's total; None when there is none, because there are no messages."""
    rows = reconcile.where(F.col("conversation_id").isNull()).select(*_BALANCE).limit(1).collect()
    return LedgerTotal(**rows[0].asDict()) if rows else None


def imbalances(reconcile: DataFrame) -> Listing[Imbalance]:
    """What does not add up, the worst first."""
    wrong = reconcile.where(F.col("conversation_id").isNotNull() & ~F.col("adds_up"))
    worst = F.col("missing") + F.col("doubled") + F.col("invented")
    rows = wrong.orderBy(worst.desc(), "conversation_id", "from_target").limit(LISTED_MAX).collect()
    return Listing(tuple(_imbalance(row) for row in rows), wrong.count() if len(rows) == LISTED_MAX else len(rows))


def talking_services(dialogs: DataFrame) -> DataFrame:
    """One row per pair of services, the one with most bytes first."""
    return (
        dialogs.groupBy("from_service", "to_service")
        .agg(
            *(F.sum(one).alias(one) for one in ("messages", "bytes", "resends")),
            F.count("*").alias("dialogs"),
        )
        .orderBy(F.desc("bytes"), "from_service", "to_service")
        .select("from_service", "to_service", "messages", "bytes", "resends", "dialogs")
    )


def talkers(dialogs: DataFrame) -> tuple[Listing[Talker], Listing[Talker]]:
    """Services, and conversations by direction, that send most."""
    columns = ("from_service", "to_service", "messages", "bytes", "resends")
    services = dialogs.transform(talking_services).limit(LISTED_MAX + 1).collect()
    order = (F.desc("bytes"), "conversation_id", "from_target")
    single = dialogs.orderBy(*order).select("conversation_id", *columns).limit(TALKERS_MAX).collect()
    pairs = tuple(Talker(**row.asDict()) for row in services[:LISTED_MAX])
    alone = tuple(
        Talker(**{one: row[one] for one in columns}, conversation=_guid(row["conversation_id"])) for row in single
    )
    return Listing(pairs, len(services)), Listing(alone, len(alone))


def _imbalance(row: Any) -> Imbalance:
    problems = row["problems"] or []
    words = [_problem(one) for one in problems]
    plain = ("from_target", "from_service", "to_service", "missing", "doubled", "invented")
    return Imbalance(
        conversation=_guid(row["conversation_id"]),
        problems=tuple(words[:_PROBLEMS_SHOWN]),
        **{one: row[one] for one in plain},
    )


def _problem(one: Any) -> str:
    fragment = f", fragment {one['fragment_number']}" if one["fragment_number"] else ""
    reason = f", dropped last: {one['reason']}" if one["reason"] else ""
    return f"{one['problem']}: message {one['sequence_number']}{fragment}{reason}"


def _guid(octets: bytes) -> str:
    return str(UUID(bytes=bytes(octets)))
