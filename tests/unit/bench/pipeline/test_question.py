"""What is asked of a synthetic history about a change of its routes."""

from __future__ import annotations

from pathlib import Path

from broker.bench.pipeline.question import question_of
from tests.support.synthetic import history


def test_it_is_asked_about_every_instance_with_its_address(tmp_path: Path) -> None:
    made = history(tmp_path / "history", messages=10)

    question = question_of(made.directory)

    assert set(made.told["instances"]) == set(question.before) == set(question.addresses.values())
    assert question.before != question.after
