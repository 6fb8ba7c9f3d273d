"""
A mirrored pair that changes its roles every second: nothing is lost, nothing doubled, and order holds.

`make soak` lets it go on for a minute; without CHAOS_RUNS ten seconds of it run. Each second one of the two is told to
hand over, or dies and comes back, by a seed; CHAOS_SEED repeats one.
"""

import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.support.mirrored import becomes, fail_over, mirrored, role

FLAPS = 60 if "CHAOS_RUNS" in os.environ else 10
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PERIOD = 1.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_killing", [False, True], ids=["handed over", "killed now and then"])
@pytest.mark.promise("The principal of a mirrored pair is lost", "Two instances claim one database")
def test_roles_that_flap_every_second_lose_and_double_nothing(tmp_path: Path, *, is_killing: bool) -> None:
    dice = random.Random(SEED)
    with mirrored(tmp_path) as made:
        made.start()
        principal, mirror = made.billing
        with made.traffic() as traffic:
            traffic.start()
            traffic.goes_on()

            for _ in range(FLAPS):
                due = time.monotonic() + PERIOD
                if is_killing and dice.random() < 0.3:
                    principal.kill()
                    becomes(mirror, "principal")
                    principal.start()
                else:
                    fail_over(principal)
                    becomes(mirror, "principal")
                principal, mirror = mirror, principal
                traffic.goes_on(1)
                threading.Event().wait(max(0.0, due - time.monotonic()))
            traffic.finish()

        assert [] == traffic.faults(), f"seed {SEED}"
        assert [0, 0] == [made.misled(daemon) for daemon in made.billing], f"seed {SEED}"
        assert FLAPS + 1 == max(role(daemon)[1] for daemon in made.billing), f"seed {SEED}"
