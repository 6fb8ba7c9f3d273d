"""One engine in a process of its own: what it took."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from broker.bench.pipeline import measurement as pipeline
from broker.bench.pipeline.run import cpu_of_tree, peak_of_tree
from broker.bench.pipeline.task import Task


def test_time_and_memory_of_children_count() -> None:
    before = cpu_of_tree()
    program = "data = bytearray(64 << 20); print(sum(range(10_000_000)), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        alone = peak_of_tree() - 64
        spent = cpu_of_tree() - before
    finally:
        child.communicate(b"\n")

    assert spent > 0.1
    assert alone > 64


def test_each_pass_is_told_and_leaves_its_answers(tmp_path: Path) -> None:
    with pipeline.history(500, 0.2, lambda _: None) as journal:
        begun = time.monotonic()
        told = pipeline.answered(Task("duckdb", ("paths",), str(journal), str(tmp_path), 2))
        lasted = time.monotonic() - begun

    assert 2 == len(told)
    assert sum(one["seconds"] for one in told) <= lasted + 0.1
    assert all(one["cpu_seconds"] > 0 and one["peak_mib"] > 10 for one in told)
    assert ["0/paths.parquet", "1/paths.parquet"] == sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")
    )
