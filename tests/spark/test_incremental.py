"""Jobs over files that arrive: as if all had been there at once, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.journal.survey import FileState, Fitness, judge
from broker.pipeline import inventory, stored
from broker.pipeline.arrival import Arrival, run_incremental
from broker.pipeline.entry import Request
from broker.pipeline.jobs import JOBS, Options
from broker.pipeline.synthetic import history as synthetic
from broker.pipeline.synthetic.world import Scenario
from tests.spark import journalling

DELAY = Arrival(timedelta(hours=1))
LAST = Arrival(timedelta(hours=1), is_last=True)
HOUR = 3_600_000_000  # microseconds
NAMES = tuple(JOBS)
KILLED = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
from pyspark import SparkContext
from broker.pipeline import arrival, entry, progress, result, session

def killing(call, number):
    left = [number]
    def killed(*words, **named):
        left[0] -= 1
        if not left[0]:
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*words, **named)
    return killed

flows, out, where = sys.argv[1:]
if where == "while it writes":
    result.publish = killing(result.publish, 2)
elif where == "before it counts":
    progress.write_json = killing(progress.write_json, 1)
else:
    progress.Progress._tidy = killing(progress.Progress._tidy, 1)
options = session.SessionOptions(master="local[2]", driver_memory="1g", java_options="-XX:TieredStopAtLevel=1")
request = entry.Request(("paths",), (Path(flows),), Path(out), session=options)
arrival.run_incremental(request, arrival.Arrival(timedelta(hours=1)))
"""


def request(flows: Path, out: Path, *jobs: str) -> Request:
    return Request(jobs or ("paths",), (flows,), out, Options())


def as_rows(frame: DataFrame) -> list[str]:
    """Every row as text, in an order of its own: equal frames have equal ones."""
    return sorted(json.dumps(row.asDict(recursive=True), default=_plain, sort_keys=True) for row in frame.collect())


def _plain(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, bytearray | bytes) else str(value)


def in_batch(spark: SparkSession, flows: Path, name: str) -> list[str]:
    """The result over all files at once."""
    found = inventory.take([flows])
    visits = inventory.read(spark, (state.path for state in found.readable))
    return as_rows(JOBS[name].run(visits, None, Options())[name])


def whole(spark: SparkSession, out: Path, name: str) -> list[str]:
    """The result of incremental runs."""
    return as_rows(stored.load(spark, out, name))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hours of eight instances, with resends, drops, loops; files that come late, copies and broken ones."""
    directory = tmp_path_factory.mktemp("history") / "flows"
    scenario = Scenario(messages=400, instances=8, seed=7, hours=4, late_share=0.2, has_bad_files=True)
    synthetic.generate(directory, scenario)
    return directory


@pytest.mark.timeout(600)
def test_runs_over_what_arrives_give_what_one_run_over_all_gives(
    spark: SparkSession, history: Path, tmp_path: Path
) -> None:
    """Every job; the files of each half in any order, one of them again under another name."""
    flows, out = tmp_path / "flows", tmp_path / "out"
    flows.mkdir()
    files = sorted(history.rglob("date=*/**/*.parquet"), key=lambda file: file.name.split("-")[-2])
    chance = random.Random(5)
    size = len(files) // 2 + 1
    told: dict[str, Any] = {}
    for number in range(2):
        part = files[number * size : (number + 1) * size]
        chance.shuffle(part)
        for file in part:
            target = flows / file.relative_to(history)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        shutil.copy(part[0], flows / f"again-{number}.parquet")
        told = run_incremental(request(flows, out, *NAMES), LAST if number else DELAY)

    assert {name: in_batch(spark, flows, name) for name in NAMES} == {name: whole(spark, out, name) for name in NAMES}
    totals = told["jobs"]["paths"]["totals"]
    assert (len(list(flows.rglob("*.parquet"))), 0) == (totals["found"], totals["late"])
    assert totals["copy"] >= 2
    assert (1, 1) == (totals["damaged"], totals["foreign"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", ["while it writes", "before it counts", "when it counted"])
def test_a_run_that_was_killed_counts_nothing_twice_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    """Python and Java, at once, with SIGKILL; then the run that follows."""
    flows, out = tmp_path / "flows", tmp_path / "out"
    for number in range(6):
        rows = [row for one in range(20) for row in journalling.passage(number * 20 + one, at=2 * number * HOUR + one)]
        journalling.write(flows, *rows)

    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(flows), str(out), where], capture_output=True, check=False, timeout=200
    )
    journalling.write(flows, *journalling.passage(999, at=12 * HOUR))
    run_incremental(request(flows, out), DELAY)
    run_incremental(request(flows, out), LAST)

    assert -signal.SIGKILL == done.returncode, done.stderr.decode()
    assert 121 == len(whole(spark, out, "paths"))
    assert in_batch(spark, flows, "paths") == whole(spark, out, "paths")
    assert [] == [path for path in (out / "paths").iterdir() if path.name.startswith(".")]


def test_a_transmission_whose_visits_arrive_apart_is_one_row(spark: SparkSession, tmp_path: Path) -> None:
    """It waits for the delay; what is settled is written at once."""
    flows, out = tmp_path / "flows", tmp_path / "out"
    sender, gateway, target = journalling.passage(1, at=2 * HOUR)
    journalling.write(flows, *journalling.passage(0), sender)

    first = run_incremental(request(flows, out), DELAY)
    journalling.write(flows, gateway, target)
    second = run_incremental(request(flows, out), DELAY)
    run_incremental(request(flows, out), LAST)

    assert ({"paths": 1}, 1) == (first["jobs"]["paths"]["rows"], first["jobs"]["paths"]["carried_visits"])
    assert ({"paths": 0}, 3) == (second["jobs"]["paths"]["rows"], second["jobs"]["paths"]["carried_visits"])
    assert [["a", "g", "b"]] * 2 == [row.path for row in stored.load(spark, out, "paths").collect()]


def test_a_visit_later_than_the_delay_is_left_out_and_told(spark: SparkSession, tmp_path: Path) -> None:
    flows, out = tmp_path / "flows", tmp_path / "out"
    lines: list[str] = []
    sender, gateway, target = journalling.passage(1)
    journalling.write(flows, sender, gateway, *journalling.passage(2, at=2 * HOUR))

    run_incremental(request(flows, out), DELAY)
    journalling.write(flows, target)
    told = run_incremental(request(flows, out), DELAY, lines.append)

    assert 1 == told["jobs"]["paths"]["totals"]["late"]
    assert "  b: 1 visits came later than --delay, left out" in lines
    assert [["a", "g"]] == [row.path for row in stored.load(spark, out, "paths").collect()]


def test_a_clock_that_is_ahead_does_not_make_all_others_late(spark: SparkSession, tmp_path: Path) -> None:
    """The watermark is never later than now."""
    flows, out = tmp_path / "flows", tmp_path / "out"
    journalling.write(flows, *journalling.passage(1, at=100 * 365 * 24 * HOUR))

    run_incremental(request(flows, out), DELAY)
    journalling.write(flows, *journalling.passage(2, at=HOUR))
    told = run_incremental(request(flows, out), DELAY)

    assert told["jobs"]["paths"]["settled_before"] < datetime.now(UTC).isoformat()


def test_files_are_taken_however_old_and_below_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """As rsync brings them, and with characters that Spark would take for patterns."""
    flows, out = tmp_path / "[x]{p,q} st*r? back\\s", tmp_path / "out"
    journalling.write(flows, *journalling.passage(1))

    first = run_incremental(request(flows, out), DELAY)
    old = journalling.write(flows, *journalling.passage(2))
    os.utime(old, (0, 0))
    second = run_incremental(request(flows, out), DELAY)

    assert [1, 2] == [told["jobs"]["paths"]["totals"]["read"] for told in (first, second)]


def test_a_file_that_was_seen_half_copied_is_read_once_it_is_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Spark names it once; the totals are those of what there is in the end, and nothing is read twice."""
    flows, out = tmp_path / "flows", tmp_path / "out"
    journalling.write(flows, *journalling.passage(1))
    half, never = (journalling.write(flows, *journalling.passage(number)) for number in (2, 3))
    whole_file = half.read_bytes()
    for path in (half, never):
        path.write_bytes(path.read_bytes()[:200])

    told = [run_incremental(request(flows, out), DELAY)]
    told.append(run_incremental(request(flows, out), DELAY))
    half.write_bytes(whole_file)
    told.append(run_incremental(request(flows, out), DELAY))
    told.append(run_incremental(request(flows, out), LAST))

    totals = [one["jobs"]["paths"]["totals"] for one in told]
    assert [(3, 1, 2), (3, 1, 2), (3, 2, 1), (3, 2, 1)] == [
        (one["found"], one["read"], one["damaged"]) for one in totals
    ]
    assert [1, 2] == sorted(int.from_bytes(row.message_id, "big") for row in stored.load(spark, out, "paths").collect())


def test_a_file_that_could_not_be_opened_is_read_once_it_can(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows, out = tmp_path / "flows", tmp_path / "out"
    journalling.write(flows, *journalling.passage(1))
    shut = journalling.write(flows, *journalling.passage(2))

    def judge_shut(path: Path) -> FileState:
        told = judge(path)
        return replace(told, fitness=Fitness.UNREADABLE, problem="Input/output error") if path == shut else told

    with monkeypatch.context() as machine:
        machine.setattr(inventory, "judge", judge_shut)
        told = [run_incremental(request(flows, out), DELAY)]
    told += [run_incremental(request(flows, out), DELAY), run_incremental(request(flows, out), LAST)]

    totals = [one["jobs"]["paths"]["totals"] for one in told]
    assert [(2, 1, 1), (2, 2, 0), (2, 2, 0)] == [(one["found"], one["read"], one["unreadable"]) for one in totals]
    assert [1, 2] == sorted(int.from_bytes(row.message_id, "big") for row in stored.load(spark, out, "paths").collect())


def test_nothing_new_is_nothing_to_do(spark: SparkSession, tmp_path: Path) -> None:
    flows, out = tmp_path / "flows", tmp_path / "out"
    journalling.write(flows, *journalling.passage(1))

    first = run_incremental(request(flows, out), DELAY)
    second = run_incremental(request(flows, out), DELAY)

    assert 1 == first["jobs"]["paths"]["steps"] == second["jobs"]["paths"]["steps"]
    assert {"paths": 0} == second["jobs"]["paths"]["rows"]
