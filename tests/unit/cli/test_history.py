"""What is said when a history cannot be asked; with one: tests/spark/test_live_plan.py."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.admin.planned_place import ReadPlace
from broker.cli.history import history_of
from broker.errors import NoJournalError, PipelineUnavailableError
from broker.routing.facts import hosted
from broker.routing.journey import Site
from broker.routing.table import build_table

PLACE = ReadPlace(
    Site("a", frozenset(), build_table([], now=datetime.now(UTC)), {}, hosted({}), is_forwarding=True), {}
)


def test_a_directory_without_the_instance_has_no_history(tmp_path: Path) -> None:
    with pytest.raises(NoJournalError) as caught:
        history_of(PLACE, PLACE, [tmp_path])

    assert "'a'" in str(caught.value)


def test_who_has_no_spark_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "broker.pipeline.entry", None)
    monkeypatch.delattr("broker.pipeline.entry", raising=False)  # where another test has imported it

    with pytest.raises(PipelineUnavailableError) as caught:
        history_of(PLACE, PLACE, [tmp_path])

    assert "pip install" in str(caught.value)
