"""
Any process of the demo may die at any moment: nothing is lost, nothing is doubled, order holds.

`make soak` runs it CHAOS_RUNS times; without that variable a short form runs. A failing run names its seed:
CHAOS_SEED repeats the victim and the moment.
"""

import os
import random
import time
from pathlib import Path

import pytest

from examples.demo.cast import ORDERS, QUEUE, TARGETS, demo_topology
from examples.demo.story import SERVICES, is_settled, ledger_faults
from examples.demo.topology import wait_for
from examples.demo.workload import Plan, Workload

RUNS = int(os.environ.get("CHAOS_RUNS", "7"))
SEEDS = [int(os.environ["CHAOS_SEED"])] if "CHAOS_SEED" in os.environ else range(RUNS)
PLAN = Plan(ORDERS.service, SERVICES, dialogs=5, messages=120)
SECONDS = 60.0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.promise("A daemon of a database dies", "A gateway dies", "case R13", "forwarding 14")
def test_killing_a_process_at_a_random_moment_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with demo_topology(tmp_path) as net:
        net.start()
        victim = list(net.daemons.values())[seed % len(net.daemons)]
        workload = Workload(PLAN)

        workload.start(ORDERS.path(net), [home.path(net) for home in TARGETS], QUEUE)
        wait_for(lambda: workload.returned >= dice.uniform(0, 0.9) * PLAN.total, seconds=SECONDS, what="the moment")
        time.sleep(dice.uniform(0, 0.2))
        victim.kill()
        time.sleep(dice.uniform(0, 1.0))
        victim.start(wait=False)
        try:
            wait_for(lambda: workload.failures or workload.returned >= PLAN.total, seconds=SECONDS, what="all answers")
            wait_for(lambda: workload.failures or is_settled(net), seconds=SECONDS, what="all dialogs closed")
        finally:
            workload.stop()

        assert [] == workload.failures, f"seed {seed}, victim {victim.name}"
        assert [] == ledger_faults(net, PLAN), f"seed {seed}, victim {victim.name}"
