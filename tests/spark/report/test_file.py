"""The report as a file: jobs that run once, and a page of what they wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from broker.journal.schema import JOURNAL, file_metadata
from broker.pipeline.jobs import RunRequest
from broker.pipeline.report.file import FILE, run, write, written
from broker.pipeline.report.page import NEEDED
from broker.pipeline.results import LOCK, RESULTS
from tests.spark.visiting import table


def write_journal(directory: Path) -> None:
    """A message from `a` through `g` to `b`; the file of `x` is broken."""
    for place, (instance, outcome) in enumerate([("a", "sent"), ("g", "forwarded"), ("b", "delivered")]):
        hops = {"a": 0, "g": 0, "b": 1}[instance]
        rows = table(
            {
                "instance": instance,
                "outcome": outcome,
                "hop_count": hops,
                "entered_at": 10_000 * place,
                "to_service": "<b>",
            }
        )
        path = directory / "date=2026-03-01" / "hour=12" / f"{instance}-000001-0000000{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = file_metadata(file=f"{place:032x}", instance=instance, sample=1.0, shed=place)
        pq.write_table(rows.cast(pa.schema(JOURNAL, metadata=metadata)), path)
    (path.parent / "x-000001-00000009.parquet").write_bytes(b"PAR1 and no more")


@pytest.mark.usefixtures("spark")
def test_a_journal_becomes_a_page_and_results(tmp_path: Path) -> None:
    write_journal(tmp_path / "flows")
    heard: list[str] = []

    done = run(RunRequest((), (tmp_path / "flows",), tmp_path / "out"), heard.append)

    html = (tmp_path / "out" / FILE).read_text(encoding="utf-8")
    assert str(tmp_path / "out" / FILE) == done["report"]
    assert set(NEEDED) == set(done["jobs"])
    assert "The ledger adds up" in html
    assert "&lt;b&gt;" in html
    assert "1 file broken off or unreadable, left out" in html
    assert "shed 2 records" in html
    assert heard[-1].startswith("report: ")
    assert {FILE, LOCK, *NEEDED} == {path.name for path in (tmp_path / "out").iterdir()}


def test_what_was_written_is_read_with_the_columns_of_its_schema(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([], RESULTS["routes"]).write.parquet(str(tmp_path / "routes"))

    found = written(spark, tmp_path, ("routes",))

    assert {"routes": RESULTS["routes"]} == {name: frame.schema for name, frame in found.items()}


def test_a_report_replaces_the_one_before_and_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / FILE
    write(target, "first")
    seen: list[str] = []
    real = Path.rename

    def rename(path: Path, to: Path) -> Path:
        seen.append(target.read_text(encoding="utf-8"))
        return real(path, to)

    monkeypatch.setattr(Path, "rename", rename)
    write(target, "second")

    assert ["first"] == seen
    assert "second" == target.read_text(encoding="utf-8")
    assert [target] == list(tmp_path.iterdir())
