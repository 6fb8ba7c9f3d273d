"""The wall clock of a process is stepped while it runs; what waits does not notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.bench.generator import compiler
from tests.chaos.network import clock as module
from tests.chaos.network.clock import Clock
from tests.chaos.network.impairment import ImpossibleError

needs_compiler = pytest.mark.skipif(
    compiler() is None and not os.environ.get("BROKER_TEST_COMPLETE"), reason="this machine has no C compiler"
)
HOUR = 3600.0
# For each line: sleeps in every way there is, and tells all its clocks; SQLite's as Unix time.
PROCESS = """
import asyncio, json, sqlite3, sys, threading, time, uvloop

async def nap():
    await asyncio.sleep(0.01)

db = sqlite3.connect(":memory:")
for line in sys.stdin:
    began = time.monotonic()
    uvloop.run(nap()); asyncio.run(nap()); threading.Event().wait(0.01); time.sleep(0.01)
    took = time.monotonic() - began
    told = db.execute("SELECT (julianday('now') - 2440587.5) * 86400").fetchone()[0]
    print(json.dumps({"wall": time.time(), "sqlite": told, "monotonic": time.monotonic(), "took": took}), flush=True)
"""


class Stepped:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        command = [*clock.words, sys.executable, "-c", PROCESS]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepped]:
    made = Stepped(Clock(tmp_path_factory.mktemp("clock") / "offset"))
    yield made
    with made.process:
        made.process.kill()


@needs_compiler
@pytest.mark.parametrize("steps", [(), (HOUR,), (-2 * HOUR,), (HOUR, 0.5)])
def test_a_step_is_seen_by_wall_clocks_at_once_and_by_no_other(stepped: Stepped, steps: tuple[float, ...]) -> None:
    stepped.clock.restore()

    for seconds in steps:
        stepped.clock.step(seconds)
    told, ahead = stepped.tell(), sum(steps)

    assert ahead == stepped.clock.offset
    assert ahead == pytest.approx(told["wall"] - time.time(), abs=10)
    assert ahead == pytest.approx(told["sqlite"] - time.time(), abs=10)
    assert 0 == pytest.approx(told["monotonic"] - time.monotonic(), abs=10)
    assert 0.04 <= told["took"] < HOUR / 2


@needs_compiler
def test_children_have_the_same_clock(stepped: Stepped) -> None:
    stepped.clock.restore()
    stepped.clock.step(-HOUR)

    told = subprocess.run(
        [*stepped.clock.words, "sh", "-c", "date +%s; sleep 0.01 && date +%s"], check=True, capture_output=True
    ).stdout.split()

    assert [-HOUR] * 2 == [pytest.approx(int(seconds) - time.time(), abs=10) for seconds in told]


def test_a_machine_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compiler", lambda: None)

    with pytest.raises(ImpossibleError, match="no C compiler"):
        Clock(tmp_path / "offset")
