"""What the process takes of its machine, as the machine tells it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from broker.observe import metrics as process
from broker.observe.metrics import PROCESS_METRICS, process_samples


def value(name: str) -> float:
    ((_, found),) = process_samples()[name]
    return found


def test_every_metric_has_its_value() -> None:
    samples = process_samples()

    assert set(samples) == {metric.name for metric in PROCESS_METRICS}
    assert all(found > 0 for name, some in samples.items() for _, found in some if name.startswith("process_"))


def test_descriptor_that_is_opened_is_counted() -> None:
    before = value("process_open_fds")

    with Path(os.devnull).open():
        assert value("process_open_fds") == before + 1


def test_work_is_counted() -> None:
    before = value("process_cpu_seconds_total")
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass

    assert value("process_cpu_seconds_total") >= before + 0.02


def test_process_was_started_before_now_and_after_its_machine() -> None:
    boot = time.time() - float(Path("/proc/uptime").read_text().split()[0])

    assert boot - 2 <= value("process_start_time_seconds") <= time.time() + 1


def test_what_a_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "_SELF", tmp_path)

    missing = {metric.name for metric in PROCESS_METRICS} - process_samples().keys()

    assert missing == {
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    }
