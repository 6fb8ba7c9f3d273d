"""What an incremental job knows of the runs before."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.errors import PipelineError
from broker.journal.survey import FileState, Fitness
from broker.pipeline.progress import Progress, State

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_file(number: int) -> FileState:
    return FileState(Path(f"/flows/{number}.parquet"), Fitness.GOOD, file=f"{number:032x}")


def test_a_step_that_counted_is_found_again(tmp_path: Path) -> None:
    with Progress(tmp_path).held({"delay": 60}) as progress:
        progress.commit(replace(progress.state, step=1, newest=NOON, spark_batch=4), [a_file(1), a_file(2)])

    with Progress(tmp_path).held({"delay": 60}) as again:
        assert (1, 4, NOON, None) == (
            again.state.step, again.state.spark_batch, again.state.newest, again.state.emitted_before
        )  # fmt: skip
        assert {"1": Path("/flows/1.parquet"), "2": Path("/flows/2.parquet")} == {
            name.lstrip("0"): path for name, path in again.known.items()
        }


def test_files_of_a_step_that_did_not_count_are_not_known(tmp_path: Path) -> None:
    """They were written, and then the process ended."""
    with Progress(tmp_path).held({}) as progress:
        progress.commit(replace(progress.state, step=1), [a_file(1)])
    with (tmp_path / "files.jsonl").open("a") as out:
        out.write(json.dumps([f"{9:032x}", "/flows/9.parquet"]) + '\n["half')

    with Progress(tmp_path).held({}) as again:
        assert 1 == len(again.known)
        again.commit(replace(again.state, step=2), [a_file(2)])

    with Progress(tmp_path).held({}) as third:
        assert {f"{1:032x}", f"{2:032x}"} == set(third.known)


def test_what_no_step_needs_is_removed(tmp_path: Path) -> None:
    with Progress(tmp_path).held({}) as progress:
        for number in (1, 2, 3):
            progress.carried(number).mkdir(parents=True)
        progress.commit(replace(progress.state, step=2), [])

        assert [progress.carried(2)] == list((tmp_path / "carried").iterdir())


def test_a_checkpoint_without_a_step_that_counted_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()

    with Progress(tmp_path).held({}) as progress:
        assert not progress.checkpoint.exists()


def test_other_options_than_before_are_refused(tmp_path: Path) -> None:
    with Progress(tmp_path).held({"delay": 60, "window": 300}) as progress:
        progress.commit(replace(progress.state, step=1), [])

    with pytest.raises(PipelineError) as told, Progress(tmp_path).held({"delay": 90, "window": 300}):
        pass

    assert "the runs before had other options: delay was 60, is 90; give the same, or another --out" == str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "step": "x"}',
        '{"format": 2, "newest": "noon"}',
        '{"format": 2, "files_bytes": 5}',
        '{"format": 2, "files_bytes": 1000000000000000}',
        '{"format": 2, "files_bytes": -1}',
    ],
)
def test_a_state_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    (tmp_path / "files.jsonl").write_text("[1]\n[2]")

    with pytest.raises(PipelineError, match="does not hold what was written into it"), Progress(tmp_path).held({}):
        pass


def test_two_processes_do_not_work_on_one_job(tmp_path: Path) -> None:
    """A lock that ends with the process, however that ends."""
    with (
        Progress(tmp_path).held({}),
        pytest.raises(PipelineError, match="another process works in"),
        Progress(tmp_path).held({}),
    ):
        pass


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"format": 99}')

    with pytest.raises(PipelineError, match="is of another version"), Progress(tmp_path).held({}):
        pass


def test_counts_are_added_up() -> None:
    broken = [{"file": name, "why": "damaged", "problem": "no footer"} for name in ("x", "y")]
    first = {"shed_records": {"a": 1}, "samples": {"a": [1.0]}, "left_out": broken}
    second = {"shed_records": {"b": 0}, "samples": {"a": [0.5], "b": [1.0]}, "left_out": []}

    state = State().added({"read": 2}, first).added({"read": 3, "late": 1}, second, {"x"})

    assert ({"read": 5, "late": 1}, {"a": 1, "b": 0}) == (state.totals, state.shed)
    assert ({"a": [0.5, 1.0], "b": [1.0]}, broken[1:]) == (state.samples, state.left_out)
