"""What processes spend: read and counted right, whoever they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.bench.cost import DIRECTORY, PRELOAD, counting, counting_syncs, spent, values_of
from broker.bench.generator import GeneratorError, compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="this machine has no C compiler")
SYNCING = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for _ in range(3):
    os.fsync(file)
    os.fdatasync(file)
print("done", flush=True)
sys.stdin.read()
"""


@needs_compiler
def test_syncs_of_who_is_started_meanwhile_are_counted(tmp_path: Path) -> None:
    with counting() as counts:
        command = [sys.executable, "-c", SYNCING, str(tmp_path / "file")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()

            cpu, syncs = spent({"it": process.pid}, counts)["it"]
            process.communicate()

    assert 6 == syncs
    assert cpu > 0


@needs_compiler
def test_who_has_not_synced_has_no_count() -> None:
    with counting() as counts:
        assert 0 == spent({"this": os.getpid()}, counts)["this"][1]


@pytest.mark.parametrize("before", [None, "/lib/other.so"])
@needs_compiler
def test_environment_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv(PRELOAD, raising=False)
    if before is not None:
        monkeypatch.setenv(PRELOAD, before)

    with counting() as counts:
        assert str(counts) == os.environ[DIRECTORY]
        assert os.environ[PRELOAD].startswith(before or str(counts))

    assert (before, None) == (os.environ.get(PRELOAD), os.environ.get(DIRECTORY))


def test_without_a_compiler_nothing_is_counted() -> None:
    with counting_syncs(None) as counts:
        assert counts is None
        assert 0 == spent({"this": os.getpid()}, counts)["this"][1]


@pytest.mark.parametrize(
    ("c_compiler", "problem"), [("false", "cannot compile it"), ("/no/such/compiler", "does not run")]
)
def test_compiler_that_fails_is_told(c_compiler: str, problem: str) -> None:
    with pytest.raises(GeneratorError, match=problem), counting_syncs(c_compiler):
        pass


@pytest.mark.parametrize("has_syncs", [True, False])
def test_values_are_for_each_message(*, has_syncs: bool) -> None:
    before, after = {"a": (1.0, 2), "b": (0.0, 0)}, {"a": (1.5, 6), "b": (0.25, 1)}

    values = values_of(before, after, 10, has_syncs=has_syncs)

    expected = {"cpu_us": 75_000.0, "a_us": 50_000.0, "b_us": 25_000.0}
    assert expected | ({"syncs": 0.5} if has_syncs else {}) == values
