"""
The ledger of real daemons that lost frames: it finds what the test knows, and nothing else.

Every frame passes cables that lose some of them and write down which. What was sent again and put away as a duplicate
is known by the daemons' own counters, what was sent and received by the applications.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from broker.pipeline import inventory
from broker.pipeline.paths import paths
from broker.pipeline.reconcile import reconcile
from broker.protocol.frame import Header
from broker.protocol.layout import FrameKind
from examples.demo.cast import QUEUE
from examples.demo.topology import Topology, wait_for
from examples.demo.workload import Plan, Workload, connection
from examples.demo.workload import faults as faults_of
from tests.support.leaky_cable import LeakyCable

PLAN = Plan("//demo/Orders", ("//demo/Billing",), dialogs=6, messages=100)
SERVICES = {"orders": PLAN.from_service, "billing": PLAN.services[0]}
SHARE = 0.01  # of the frames that a cable loses: some twenty in one run
SECONDS = 60.0
SENT = {False: PLAN.messages + 1, True: PLAN.messages + 1}  # by dialog: orders and the close; receipts and the end


@dataclass(frozen=True)
class Run:
    """What is known of a run without its journals; `doubtful` ids are of frames that may be lost with a connection."""

    journals: list[Path]
    lost: list[Header]
    doubtful: set[bytes]
    resent: int
    duplicates: int
    faults: list[str]

    def visits(self, spark: SparkSession) -> DataFrame:
        """All journals."""
        taken = inventory.take(inventory.find(self.journals))
        return inventory.read(spark, [state.path for state in taken.readable])


def play(directory: Path, *, share: float = 0.0, is_killed: bool = False) -> Run:
    """One run over a gateway, until every dialog has ended on both sides and nobody waits for anything."""
    with ExitStack() as stack:
        net = stack.enter_context(Topology(directory))
        cables = {
            name: stack.enter_context(LeakyCable(share, seed=seed)) for seed, name in enumerate((*SERVICES, "gateway"))
        }
        _set_up(net, cables)
        net.start()
        files = {name: net.daemons[name].directory / f"{name}.db" for name in SERVICES}
        workload = Workload(PLAN)
        workload.start(files["orders"], [files["billing"]], QUEUE)
        try:
            if is_killed:
                wait_for(lambda: workload.returned >= PLAN.total / 3, seconds=SECONDS, what="a third of the answers")
                net.daemons["gateway"].kill()
                net.daemons["gateway"].start()
            wait_for(
                lambda: (
                    workload.failures or (workload.returned == PLAN.total and all(map(_is_settled, files.values())))
                ),
                seconds=SECONDS,
                what="the end of all dialogs",
            )
        finally:
            workload.stop()
        assert [] == workload.failures
        told = wait_for(lambda: _counters_at_rest(net), seconds=SECONDS, what="the last copies")
        doubtful = {one for cable in cables.values() for one in cable.doubtful}
        net.stop()
        with ExitStack() as applications:
            notes = [applications.enter_context(connection(file)) for file in files.values()]
            faults = [one for db in notes for one in faults_of(db, dialogs=PLAN.dialogs, messages=PLAN.messages)]
        return Run(
            [daemon.directory / "journal" for daemon in net.daemons.values()],
            [header for cable in cables.values() for header in cable.lost],
            doubtful,
            resent=sum(one["services"][SERVICES[name]]["resent"] for name, one in zip(SERVICES, told, strict=True)),
            duplicates=sum(one["dropped"].get("duplicate", 0) for one in told),
            faults=faults,
        )


def _set_up(net: Topology, cables: dict[str, LeakyCable]) -> None:
    """Every way from one to another leads over the cable of the latter."""
    instances = {name: str(uuid4()) for name in SERVICES}
    journal = {"journal": {"directory": "journal", "sample": 1.0}}
    net.add("gateway", forwarding=True, settings=journal)
    for name in SERVICES:
        net.add(name, databases=[name], broker_instances=instances, settings=journal)
    for name, cable in cables.items():
        cable.to = net.daemons[name].port

    def route(far: str, cable: LeakyCable) -> str:
        where = f"SERVICE_NAME = '{SERVICES[far]}', BROKER_INSTANCE = '{instances[far]}', ADDRESS = '{cable.address}'"
        return f"CREATE ROUTE [{far}] WITH {where};"

    net.script(
        "gateway", "msdb", "\n".join(["DROP ROUTE AutoCreatedLocal;", *(route(far, cables[far]) for far in SERVICES)])
    )
    for name, far in (("orders", "billing"), ("billing", "orders")):
        service = f"CREATE QUEUE {QUEUE};\nCREATE SERVICE [{SERVICES[name]}] ON QUEUE {QUEUE};"
        net.script(name, name, f"{service}\n{route(far, cables['gateway'])}")


def _is_settled(file: Path) -> bool:
    with connection(file) as db:
        dialogs = db.execute("SELECT count(*) FROM broker_conversation WHERE state <> 'CD'").fetchone()[0]
        waiting = db.execute("SELECT count(*) FROM broker_transmission").fetchone()[0]
    return not dialogs and not waiting


def _counters_at_rest(net: Topology) -> list[dict[str, Any]] | None:
    """What both databases tell, once it is the same as a moment ago: copies that nobody waits for may still come."""
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    for told in (before, after):
        told += [net.daemons[name].status()["databases"][name] for name in SERVICES]
        time.sleep(0.2)
    return after if [one["dropped"] for one in before] == [one["dropped"] for one in after] else None


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which every cable loses frames."""
    return play(tmp_path_factory.mktemp("leaky"), share=SHARE)


@pytest.fixture(scope="module")
def visits(spark: SparkSession, leaky: Run) -> Iterator[DataFrame]:
    """Its journals."""
    kept = leaky.visits(spark).cache()
    yield kept
    kept.unpersist()


def ledger(visits: DataFrame) -> tuple[Row, list[Row]]:
    """The total, and the rows of the dialogs."""
    rows = reconcile(visits, grace_seconds=0).collect()
    return next(row for row in rows if row.conversation_id is None), [row for row in rows if row.conversation_id]


@pytest.mark.promise("The ledger does not add up")
def test_the_ledger_finds_what_was_lost_and_that_it_all_arrived(leaky: Run, visits: DataFrame) -> None:
    """As the cables, the daemons and the applications know it."""
    total, rows = ledger(visits)

    places = PLAN.dialogs * (SENT[False] + SENT[True])
    lost = [header for header in leaky.lost if header.kind == FrameKind.MESSAGE]
    assert [] == leaky.faults
    assert lost
    assert (leaky.resent, leaky.duplicates) == (total.resent, total.duplicates)
    assert len(lost) <= total.lost <= len(lost) + len(leaky.doubtful)
    assert (places, places, places + leaky.resent) == (total.sent, total.delivered, total.transmissions)
    assert (0, 0, 0, True) == (total.missing, total.doubled, total.invented, total.adds_up)
    assert [(direction, count) for direction, count in SENT.items() for _ in range(PLAN.dialogs)] == sorted(
        (row.from_target, row.sent) for row in rows
    )


def test_the_paths_name_every_frame_that_was_lost_and_no_other(leaky: Run, visits: DataFrame) -> None:
    """One that ended with an acknowledgement was lost as well, since its target keeps a journal."""
    ends = (
        paths(visits, grace_seconds=0).where(F.col("end").isin("lost", "acknowledged")).select("message_id").collect()
    )

    found_ids, lost_ids = {bytes(row.message_id) for row in ends}, {header.message_id for header in leaky.lost}
    assert set() == lost_ids - found_ids
    assert set() == found_ids - lost_ids - leaky.doubtful


@pytest.mark.promise("The ledger does not add up")
def test_a_ledger_with_a_hole_still_adds_up(spark: SparkSession, tmp_path: Path) -> None:
    """A gateway that is killed loses what it had not written of its journal, and what it held."""
    run = play(tmp_path, is_killed=True)

    total, _ = ledger(run.visits(spark))

    places = PLAN.dialogs * (SENT[False] + SENT[True])
    assert [] == run.faults
    assert (run.resent, run.duplicates) == (total.resent, total.duplicates)
    assert (places, places, 0, 0, 0) == (total.sent, total.delivered, total.missing, total.doubled, total.invented)
    assert total.adds_up
