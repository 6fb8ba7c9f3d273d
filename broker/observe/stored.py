"""
The metrics of databases: which is principal, what waits in their files, and whether their ledgers add up.

`stored_readers` reads what is in memory, on the loop. `stored_samples` asks the files and blocks, so it is for a
thread; a database whose file cannot be read now is left out of that scrape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.observe.backlog import read_backlog
from broker.observe.described import MetricDefinition, Reader, Samples
from broker.observe.histogram import histogram_samples
from broker.observe.instance import Running
from broker.observe.label import Labels
from broker.observe.ledger import read_ledger
from broker.routing.mirrored import MirrorRole

UNACCOUNTED = "broker_ledger_unaccounted_messages"

STORED_METRICS = (
    MetricDefinition(
        "broker_database_principal",
        "1 while this instance is the principal of its database, 0 while it is a mirror.",
        ("database",),
        fold=max,
    ),
    MetricDefinition(
        "broker_database_epoch",
        "How often somebody has taken the database over, as far as this instance knows.",
        ("database",),
        fold=max,
    ),
    MetricDefinition(
        "broker_store_commit_seconds",
        "How long transactions of the writer thread of a database took, the wait for applications and the commit to the"
        " disk included.",
        ("database",),
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_transmission_queue_messages",
        "Messages of applications here that the far side has not acknowledged.",
        ("database",),
    ),
    MetricDefinition(
        "broker_transmission_queue_oldest_seconds",
        "Age of the first of them, 0 when there is none.",
        ("database",),
        fold=max,
    ),
    MetricDefinition(
        "broker_ledger_messages",
        "Messages that applications here have sent, and what became of them: acknowledged, held, or why they"
        " failed; these add up to those sent.",
        ("database", "entry"),
    ),
    MetricDefinition(
        UNACCOUNTED,
        "With a database, its messages sent that are neither acknowledged nor held nor failed for a reason. With an"
        " empty one, dialog frames that came in and are neither forwarded nor delivered nor dropped nor held. 0 unless"
        " there is a fault of the program.",
        ("database",),
    ),
)


def stored_readers() -> Mapping[str, Reader]:
    """What reads some of them on the loop; of `UNACCOUNTED` the frames that pass through."""
    return {
        "broker_database_principal": _principal,
        "broker_database_epoch": _epoch,
        "broker_store_commit_seconds": _commits,
        UNACCOUNTED: lambda instance: [(("",), instance.forwarder.unaccounted)],
    }


def stored_samples(paths: Mapping[str, Path]) -> dict[str, list[tuple[Labels, float]]]:
    """What the files tell, by metric. Blocking."""
    return {name: list(some) for name, some in (_transmission_queues(paths) | _ledgers(paths)).items()}


def _principal(instance: Running) -> Samples:
    for name, standing in instance.standings().items():
        yield (name,), standing.role is MirrorRole.PRINCIPAL


def _epoch(instance: Running) -> Samples:
    for name, standing in instance.standings().items():
        yield (name,), standing.epoch


def _commits(instance: Running) -> Samples:
    for name, endpoint in instance.endpoints.items():
        times = endpoint.commits
        yield from histogram_samples((name,), dict(enumerate(times.counts)), times.seconds)


def _transmission_queues(paths: Mapping[str, Path]) -> dict[str, Samples]:
    """By database; one whose file cannot be read now is left out of this scrape."""
    backlogs = {name: read_backlog(path) for name, path in paths.items()}
    known = {(name,): backlog for name, backlog in backlogs.items() if backlog is not None}
    return {
        "broker_transmission_queue_messages": [(labels, backlog.messages) for labels, backlog in known.items()],
        "broker_transmission_queue_oldest_seconds": [(labels, backlog.oldest_s) for labels, backlog in known.items()],
    }


def _ledgers(paths: Mapping[str, Path]) -> dict[str, Samples]:
    """By database, as far as their files can be read now."""
    read = {name: read_ledger(path) for name, path in paths.items()}
    known = {name: balance for name, balance in read.items() if balance is not None}
    return {
        "broker_ledger_messages": [
            ((name, reason or entry), messages)
            for name, balance in known.items()
            for entry, reason, messages in balance.entries()
            if entry != "unaccounted"
        ],
        UNACCOUNTED: [((name,), balance.unaccounted) for name, balance in known.items()],
    }
