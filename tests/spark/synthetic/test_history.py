"""A synthetic history as a whole."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from broker.pipeline.synthetic import history as synthetic
from broker.pipeline.synthetic.world import Scenario, SyntheticError
from tests.support.synthetic import history


def contents(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by file."""
    return {
        str(path.relative_to(directory)): pq.ParquetFile(path).read().to_pylist()
        for path in directory.rglob("*.parquet")
    }


def test_the_same_seed_makes_the_same_files(tmp_path: Path) -> None:
    """With the same rows, the truth among them; another seed makes others."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        history(tmp_path / name, messages=100, instances=4, seed=seed, late_share=0.2)

    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_the_counts_are_those_of_the_files(tmp_path: Path) -> None:
    """Rows and files; nothing is left behind but journals and the truth."""
    made = history(tmp_path / "h")

    assert made.told["counts"]["files"] == len(made.files)
    assert made.told["counts"]["visits"] == sum(pq.read_metadata(file).num_rows for file in made.files)
    assert ["_truth", "date=2026-03-01"] == sorted(path.name for path in made.directory.iterdir())
    assert not list(made.directory.rglob(".*"))


@pytest.mark.parametrize("messages", [1, 2, 7])
def test_a_tiny_history_is_one_as_well(tmp_path: Path, messages: int) -> None:
    """However little there is to tell."""
    made = history(tmp_path / "h", messages=messages, instances=3, hours=0.1)

    assert messages == made.told["counts"]["messages"]
    assert made.files


def test_the_size_of_a_stretch_does_not_follow_that_of_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many messages in little time are made in more stretches, and are as many."""
    monkeypatch.setattr(synthetic, "STRETCH_MESSAGES", 50)

    made = history(tmp_path / "h", messages=600, hours=0.2)

    assert 600 == made.told["counts"]["messages"]
    assert len(made.files) > 50


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    """And left as it is."""
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(SyntheticError, match="not empty"):
        synthetic.generate(tmp_path, Scenario(messages=1, instances=3, seed=1))
