"""Which files are read, and what is reported of the others."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from broker.errors import NoJournalError
from broker.journal.schema import SCHEMA_KEY, FileState, Fitness, judge
from broker.pipeline import inventory
from broker.pipeline.jobs import micros
from broker.pipeline.results import VISIT
from tests.spark import journalling, visiting

SECOND = 1_000_000


def rewritten(path: Path, *, without: str = "", version: int = 1, more: str = "") -> None:
    """A file as another version would have written it."""
    table = pq.read_table(path, partitioning=None)
    metadata = {**table.schema.metadata, SCHEMA_KEY: str(version).encode()}
    if without:
        table = table.drop_columns([without])
    if more:
        table = table.append_column(more, table["instance"])
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_files_of_every_kind_are_read_or_told(spark: SparkSession, tmp_path: Path) -> None:
    """Good, copied, broken off, empty, foreign, older, newer; hidden files are skipped."""
    good = journalling.write(tmp_path, *journalling.passage(1), shed=3)
    older = journalling.write(tmp_path, *journalling.passage(2))
    newer = journalling.write(tmp_path, *journalling.passage(3), sample=0.5)
    rewritten(older, without="adjacent_in")
    rewritten(newer, version=2, more="colour")
    shutil.copy(good, tmp_path / "z-copy.parquet")
    (tmp_path / "half.parquet").write_bytes(good.read_bytes()[:300])
    (tmp_path / "empty.parquet").touch()
    (tmp_path / ".unfinished.parquet").touch()
    (tmp_path / "_truth").mkdir()
    (tmp_path / "_truth" / "x.parquet").touch()
    pq.write_table(pq.read_table(good, partitioning=None).replace_schema_metadata({}), tmp_path / "other.parquet")

    found = inventory.take(inventory.find([tmp_path]))
    rows = inventory.read(spark, (state.path for state in found.readable)).collect()
    summary = found.summary()

    expected = {"found": 7, "read": 3, "rows": 9, "copy": 1, "damaged": 2, "foreign": 1, "older": 1, "newer": 1}
    assert expected == {name: summary[name] for name in expected}
    assert {"a": 3} == summary["shed_records"]
    assert {1, 2, 3} == {int.from_bytes(row.message_id, "big") for row in rows}
    assert VISIT.names == rows[0].__fields__
    assert {"empty.parquet", "half.parquet", "other.parquet", "z-copy.parquet"} == {
        Path(one["file"]).name for one in summary["left_out"]
    }
    lines = inventory.sentences(summary)
    assert "3 files of 1 instance read, 9 visits" == lines[0]
    assert "a shed 3 records because its buffer was full: figures lack them" in lines
    assert any("the samples differ (a 0.5/1.0)" in line for line in lines)
    plain = journalling.write(tmp_path / "plain", *journalling.passage(4))
    assert ["1 file of 1 instance read, 3 visits"] == inventory.sentences(inventory.take([plain]).summary())
    with pytest.raises(NoJournalError, match=r"no journal in .*/nowhere: No such file or directory; name the"):
        inventory.take(inventory.find([tmp_path / "nowhere"]))


def test_a_journal_has_a_hole_before_the_first_file_of_each_process() -> None:
    def state(instance: str, number: int, first: int, last: int) -> FileState:
        path = Path(f"{instance}-{number:06d}-ab.parquet")
        return FileState(path, Fitness.GOOD, instance=instance, first_left_us=first * SECOND, last_us=last * SECOND)

    files = [state("a", 1, 90, 120), state("a", 2, 40, 60), state("a", 1, 10, 41), state("b", 7, 20, 30)]

    before = inventory.TRANSIT_US
    assert {"a": [(-before, 10 * SECOND), (60 * SECOND - before, 90 * SECOND)]} == inventory.Inventory(files).holes()


def test_a_hole_ends_with_what_a_process_did_itself_not_with_what_it_found_queued(tmp_path: Path) -> None:
    """A process that was killed had queued messages; the next one sends them, and its rows say when that was."""
    start = micros(visiting.START)

    def file(instance: str, *rows: tuple[int, int]) -> FileState:
        instants = ({"entered_at": entered * SECOND, "left_at": left * SECOND} for entered, left in rows)
        return judge(
            journalling.write(tmp_path, *({"instance": instance, "outcome": "sent", **one} for one in instants))
        )

    files = [file("a", (0, 74), (75, 75)), file("b", (5, 90), (91, 91)), file("b", (10, 10), (20, 20))]

    before = inventory.TRANSIT_US
    assert {
        "a": [(-before, start + 74 * SECOND)],
        "b": [(-before, start + 10 * SECOND), (start + 20 * SECOND - before, start + 90 * SECOND)],
    } == inventory.Inventory(files).holes()


def test_a_file_that_vanishes_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Before it is judged, and while Spark reads, which leaves it out."""
    stays, goes = (journalling.write(tmp_path, *journalling.passage(number)) for number in (1, 2))

    found = inventory.take([stays, goes, tmp_path / "gone.parquet"])
    goes.unlink()
    rows = inventory.read(spark, (state.path for state in found.readable)).count()
    summary = found.summary()

    assert 3 == rows
    assert (1, 1) == (summary["vanished"], summary["vanished_while_read"])
    assert any("removed while being read" in line for line in inventory.sentences(summary))


def test_names_are_taken_literally(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would look for patterns in them, and for values of columns in directories."""
    path = journalling.write(tmp_path, *journalling.passage(1), name="instance=x/{a,b}[1]*/bytes=7/f 1.parquet")

    rows = inventory.read(spark, [path]).collect()

    assert ([100] * 3, {"a", "g", "b"}) == ([row.bytes for row in rows], {row.instance for row in rows})
    assert 0 == inventory.read(spark, []).count()


def test_the_journals_tell_up_to_the_earliest_of_their_ends() -> None:
    """Seconds; an instance that tells nothing for more than an hour holds nothing back any longer."""
    horizons: list[tuple[dict[str, list[int | None]], int | None]] = [
        ({"a": [9, 50], "b": [20]}, 20),
        ({"a": [5000], "b": [20]}, 1400),
        ({"a": [50], "b": [None]}, 50),
        ({"a": [None]}, None),
        ({}, None),
    ]

    for newest, horizon in horizons:
        states = [
            FileState(Path(name), Fitness.GOOD, instance=name, last_us=end and end * SECOND)
            for name, ends in newest.items()
            for end in ends
        ]
        assert (horizon and horizon * SECOND) == inventory.Inventory(states).horizon_us()
