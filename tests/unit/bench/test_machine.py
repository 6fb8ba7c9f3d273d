"""What is told of the machine and of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from broker.bench import figures as machine
from broker.bench.figures import CORES, cpu_seconds, forget_peak, load_averages, peak_mib, pin, unpin


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
