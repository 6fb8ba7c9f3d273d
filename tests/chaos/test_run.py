"""A fault run as people start it: one fault on real daemons, and the judgement of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.chaos.campaign import Campaign, Report, dice_for
from tests.chaos.faults.catalog import FAULTS
from tests.chaos.run import ATTEMPTS, MIXTURES_MIN, again, impossible, main, pair_of, parser, run_phases

ROOT = Path(__file__).parents[2]


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos.run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)
def test_a_run_with_one_fault_tells_its_counts_and_leaves_the_histories(tmp_path: Path) -> None:
    run = chaos("--fault", "kill", "--minutes", "0", "--seed", "1", "--gateways", "2", "--keep", str(tmp_path))

    assert 0 == run.returncode, run.stdout + run.stderr
    told = re.search(r"^kill +(\d+) messages +(\d+) dialogs .* recovered in +[0-9.]+ s", run.stdout, re.MULTILINE)
    assert told is not None, run.stdout
    assert int(told[1]) > int(told[2]) > 0
    victim = re.search(r"kill: daemon of (\S+) \((\d+) frames before, \d+ meanwhile\)$", run.stdout, re.MULTILINE)
    assert victim is not None, run.stdout
    assert int(victim[2]) > 0 or victim[1] == "stock-2"  # the mirror
    assert "1 phases" in run.stdout
    assert re.search(r"^pair: (one file and a lock|a file for each partner and a command)$", run.stdout, re.MULTILINE)
    histories = {path.name for path in (tmp_path / "histories" / "001-kill").iterdir()}
    names = ("initiator-1", "initiator-2", "billing", "stock-1", "parcel-1", "parcel-2")
    assert {f"application-{name}.history" for name in names} < histories


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "histories").mkdir()

    run = chaos("--keep", str(tmp_path))

    assert 2 == run.returncode
    assert "holds another run" in run.stderr


def test_hosts_that_cannot_be_made_end_the_run_where_nothing_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROKER_TEST_COMPLETE", "1")

    code = main(["--keep", str(tmp_path / "run")])

    assert 2 == code
    assert "no hosts: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "is_complete", "expected"),
    [
        ("", True, ["clock-step"]),
        ("--fault mixture", True, ["clock-step"]),
        ("--fault kill --fault mixture-2", True, ["clock-step"]),
        ("--fault kill", True, []),
        ("--fault kill --fault clock-step", False, ["clock-step"]),
        ("--network loopback", True, []),
        ("", False, []),
    ],
)
def test_a_fault_that_was_asked_for_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch, words: str, expected: list[str], *, is_complete: bool
) -> None:
    monkeypatch.setenv("BROKER_TEST_COMPLETE", "1" if is_complete else "")
    campaign = SimpleNamespace(possible=[name for name in FAULTS if name != "clock-step"])

    assert expected == impossible(cast("Campaign", campaign), parser().parse_args(words.split()))


class Phases:
    """What is asked of a campaign, with these reports one after the other."""

    def __init__(self, *reports: Report) -> None:
        self.asked: list[str] = []
        self.possible = ["kill"]
        self._reports = list(reports)

    def alone(self, name: str) -> Report:
        self.asked.append(name)
        return self._reports.pop(0)

    def mixture(self, index: int) -> Report:
        return self.alone(f"mixture-{index}")


def test_mixtures_come_also_when_each_fault_alone_has_taken_all_the_time() -> None:
    phases = Phases(*[Report("any", is_felt=True)] * (1 + MIXTURES_MIN))

    assert run_phases(cast("Campaign", phases), [], 0.0)

    assert ["kill", *(f"mixture-{number + 1}" for number in range(MIXTURES_MIN))] == phases.asked


def test_a_phase_that_hits_nothing_comes_again_and_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases(Report("kill", messages=7), Report("kill", is_felt=True, messages=5))

    is_well = run_phases(cast("Campaign", phases), ["kill"], 0.0)

    assert (True, ["kill", "kill"]) == (is_well, phases.asked)
    told = capsys.readouterr().out
    assert 1 == told.count("HIT NOTHING, not counted")
    assert "1 phases, 5 messages" in told


def test_a_fault_that_hits_nothing_again_and_again_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases(*[Report("kill")] * ATTEMPTS)

    assert not run_phases(cast("Campaign", phases), ["kill"], 0.0)
    assert f"kill has hit nothing {ATTEMPTS} times" in capsys.readouterr().out


def test_a_fault_that_comes_again_has_other_victims_and_the_first_ones_in_the_next_run() -> None:
    first, again, next_run = (dice_for(7, "kill", occasion).sample(range(99), 5) for occasion in (1, 2, 1))

    assert first == next_run
    assert first != again


def test_the_command_that_repeats_a_run_asks_for_the_same() -> None:
    faults = ["--fault", "kill", "--fault", "mixture", "--fault", "mixture-12"]
    words = [*faults, "--gateways", "2", "--network", "loopback", "--pair", "lock", "--minutes", "0.5"]

    command = again(parser().parse_args(words), 7)

    assert parser().parse_args([*words, "--seed", "7"]) == parser().parse_args(command.split()[3:])


def test_the_kind_of_the_pair_is_drawn_by_the_seed_unless_it_is_named() -> None:
    any_kind, named = parser().parse_args([]), parser().parse_args(["--pair", "lock"])

    drawn = [pair_of(any_kind, seed) for seed in range(40)]

    assert {"command", "lock"} == set(drawn)
    assert drawn == [pair_of(any_kind, seed) for seed in range(40)]
    assert {"lock"} == {pair_of(named, seed) for seed in range(40)}


@pytest.mark.parametrize("name", ["kil", "mixture-0", "mixture-", "mixture 3"])
def test_what_is_no_fault_is_told_with_those_that_there_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["--fault", name])

    assert f"{name} is no fault: kill, " in capsys.readouterr().err


@pytest.mark.parametrize(("hours", "minutes"), [("0.5", "30"), ("8", "480")])
def test_a_soak_goes_on_for_as_many_hours_as_were_said(tmp_path: Path, hours: str, minutes: str) -> None:
    for name in ("python", "pytest"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$0 $@"\n')
        (tmp_path / name).chmod(0o755)

    done = subprocess.run(
        ["make", "-o", "setup", "soak", f"HOURS={hours}", f"BIN={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert f"{tmp_path}/python -m tests.chaos.run --minutes {minutes}\n" in done.stdout
