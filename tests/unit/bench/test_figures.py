"""What is told of the machine and of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from broker.bench import figures as machine
from broker.bench.figures import (
    CORES,
    Result,
    ResultError,
    Row,
    compare,
    cpu_seconds,
    forget_peak,
    load,
    load_averages,
    peak_mib,
    pin,
    row_of,
    save,
    unpin,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_machine_and_versions_are_told() -> None:
    told = machine.machine()

    assert {"cpu", "cores", "memory", "system", "python", "uvloop", "sqlite", "broker"} == set(told)
    assert all(told.values())


def test_the_processor_has_a_name_where_the_system_tells_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")

    assert machine.machine()["cpu"]


def test_the_processor_is_called_what_the_system_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus: the second\n")

    assert "Abacus: the second" == machine.machine()["cpu"]


def test_a_package_that_is_not_there_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(machine, "version", missing)

    assert "absent" == machine.machine()["uvloop"]


def test_there_are_three_load_averages() -> None:
    assert 3 == len([float(word) for word in load_averages().split()])


def test_cpu_time_of_a_process_is_what_it_tells_itself() -> None:
    before = time.process_time()
    told = cpu_seconds(os.getpid())

    assert before <= told <= time.process_time()


def test_the_peak_of_memory_is_forgotten_when_it_has_passed() -> None:
    program = "import sys; x = bytearray(64 << 20); del x; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        at_first = peak_mib(process.pid)
        forget_peak(process.pid)
        later = peak_mib(process.pid)
        process.kill()

    assert at_first > 64
    assert 0 < later < at_first - 32


def test_a_process_that_has_ended_has_no_memory() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

        with pytest.raises(ProcessLookupError, match=f"process {ended.pid} has no memory"):
            peak_mib(ended.pid)


def test_a_process_stays_on_its_core_until_it_is_let_go(child: subprocess.Popen[bytes]) -> None:
    pin(child.pid, 1)
    pinned = os.sched_getaffinity(child.pid)
    unpin(child.pid)

    assert {CORES[1 % len(CORES)]} == pinned
    assert set(CORES) == os.sched_getaffinity(child.pid)


# --- test_result ---
# Rows from samples, files of results, and what has changed between two of them.


KEY = ("forwarding", "256 B", "flood", "gateway")


def row(subject: str, cpu_us: float, *, spread: float = 0.0, headline: str = "cpu_us") -> Row:
    return Row("forwarding", "256 B", "flood", subject, headline, {headline: cpu_us}, spread, subject == "relay")


def test_a_row_holds_the_median_of_every_value() -> None:
    samples = [{"cpu_us": cpu, "p99_us": p99} for cpu, p99 in ((3.0, 10.0), (1.0, 30.0), (2.0, 20.0))]

    made = row_of(KEY, "cpu_us", samples, yardstick="relay")

    assert {"cpu_us": 2.0, "p99_us": 20.0} == made.values
    assert (KEY, 2.0, False) == (made.key, made.figure, made.is_yardstick)


def test_the_spread_is_half_of_what_the_middle_half_of_the_samples_differ_by() -> None:
    samples = [{"cpu_us": value} for value in (8.0, 9.0, 10.0, 11.0, 100.0)]

    assert 0.1 == row_of(KEY, "cpu_us", samples, yardstick="relay").spread
    assert 0.0 == row_of(KEY, "cpu_us", samples[:1], yardstick="relay").spread


def test_the_row_of_the_yardstick_is_marked() -> None:
    assert row_of((*KEY[:3], "relay"), "cpu_us", [{"cpu_us": 1.0}], yardstick="relay").is_yardstick


@pytest.mark.parametrize(
    ("now", "verdict"),
    [(10.0, "same"), (10.4, "same"), (20.0, "WORSE, 2.00 times"), (5.0, "better, 2.00 times")],
)
def test_a_row_is_judged_by_its_ratio_to_the_yardstick_of_its_own_run(now: float, verdict: str) -> None:
    earlier = [row("relay", 1.0), row("gateway", 10.0)]
    machine_three_times_slower = [row("relay", 3.0), row("gateway", 3 * now)]

    (change,) = compare(machine_three_times_slower, earlier)

    assert verdict == change.verdict


def test_of_a_rate_more_is_better() -> None:
    earlier = [row("relay", 100.0, headline="messages_s"), row("gateway", 10.0, headline="messages_s")]
    now = [row("relay", 100.0, headline="messages_s"), row("gateway", 20.0, headline="messages_s")]

    (change,) = compare(now, earlier)

    assert "better, 2.00 times" == change.verdict


@pytest.mark.parametrize(
    ("spread", "now", "verdict"),
    [(0.2, 13.0, "same"), (0.2, 15.0, "WORSE, 1.50 times"), (0.3, 13.0, "too noisy to tell")],
)
def test_a_change_is_held_against_the_noise_of_both_runs(spread: float, now: float, verdict: str) -> None:
    earlier = [row("relay", 1.0, spread=spread), row("gateway", 10.0)]

    (change,) = compare([row("relay", 1.0), row("gateway", now)], earlier)

    assert (verdict, 2 * spread) == (change.verdict, change.tolerance)


@pytest.mark.parametrize("earlier", [[], [row("relay", 1.0)], [row("gateway", 1.0)]], ids=["none", "relay", "gateway"])
def test_a_row_that_the_earlier_run_cannot_judge_is_new(earlier: list[Row]) -> None:
    (change,) = compare([row("relay", 2.0), row("gateway", 6.0)], earlier)

    assert ("new", 3.0) == (change.verdict, change.now)


def test_rows_without_a_yardstick_are_not_compared() -> None:
    assert [] == compare([row("gateway", 1.0)], [row("gateway", 1.0)])


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    result = Result({"cpu": "one"}, "2026-01-01T00:00:00+00:00", {"before": "0.1"}, (row("relay", 1.0),), ("a note",))

    save(result, tmp_path / "new" / "result.json")

    assert result == load(tmp_path / "new" / "result.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no JSON", "holds no results of broker bench"),
        ("[]", "holds no results of broker bench"),
        ("{}", "holds no results of broker bench"),
        (json.dumps({"format": 1, "rows": [{"bench": "codec"}]}), "holds no results of broker bench"),
        (json.dumps({"format": 0}), "stored by another version of broker bench"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)

    with pytest.raises(ResultError) as caught:
        load(path)

    assert str(caught.value).startswith(f"{path}: {says}")


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")
