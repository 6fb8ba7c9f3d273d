"""A fault run as people start it: one fault on real daemons, and the judgement of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tests.chaos.campaign import Campaign, Report
from tests.chaos.run import ATTEMPTS, again, parser, run_phases

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_a_run_with_one_fault_tells_its_counts_and_leaves_the_histories(tmp_path: Path) -> None:
    words = ["--fault", "kill", "--minutes", "0", "--seed", "1", "--gateways", "2", "--keep", str(tmp_path)]
    command = [sys.executable, "-m", "tests.chaos.run", *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == run.returncode, run.stdout + run.stderr
    told = re.search(r"^kill +(\d+) messages +(\d+) dialogs .* recovered in +[0-9.]+ s", run.stdout, re.MULTILINE)
    assert told is not None, run.stdout
    assert int(told[1]) > int(told[2]) > 0
    assert "1 phases" in run.stdout
    histories = {path.name for path in (tmp_path / "histories" / "001-kill").iterdir()}
    names = ("initiator-1", "initiator-2", "billing", "stock-1", "parcel-1", "parcel-2")
    assert {f"application-{name}.history" for name in names} < histories
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (2, True) == (second.returncode, "holds another run" in second.stderr)


class Phases:
    """What is asked of a campaign, with these reports one after the other."""

    possible = ("kill",)

    def __init__(self, *reports: Report) -> None:
        self._reports = list(reports)

    def alone(self, _name: str) -> Report:
        return self._reports.pop(0)


def test_a_phase_that_hits_nothing_is_not_counted_and_fails_the_run_in_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    felt = Phases(Report("kill", messages=7), Report("kill", is_felt=True, messages=5))

    assert run_phases(cast("Campaign", felt), ["kill"], 0.0)
    assert "1 phases, 5 messages" in capsys.readouterr().out
    assert not run_phases(cast("Campaign", Phases(*[Report("kill")] * ATTEMPTS)), ["kill"], 0.0)


def test_the_command_that_repeats_a_run_asks_for_the_same() -> None:
    faults = ["--fault", "kill", "--fault", "mixture", "--fault", "mixture-12"]
    words = [*faults, "--gateways", "2", "--network", "loopback", "--pair", "lock", "--minutes", "0.5"]

    command = again(parser().parse_args(words), 7)

    assert parser().parse_args([*words, "--seed", "7"]) == parser().parse_args(command.split()[3:])
