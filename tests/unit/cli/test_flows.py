"""`broker flows tail` and `broker flows stats`, on journals good and bad."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.cli.exit_code import NOT_FOUND
from broker.cli.flows import without_numpy
from tests.support.command import run
from tests.support.journalled import visit, write

DIALOG = UUID("0a4b1c5e-6d0f-4d5a-9a51-0d6f3c1b2e77")
SECONDS = 20.0


def journal(directory: Path) -> Path:
    write(
        directory / "date=2026-03-01" / "hour=12" / "gateway-1-a.parquet",
        *[visit(n, sequence_number=n) for n in range(30)],
        visit(
            30,
            took=0.25,
            outcome="dropped",
            reason="no route",
            code=9798,
            conversation_id=DIALOG.bytes,
            adjacent_in="shop",
            route="ToBank",
            adjacent_out="tcp://bank:4022",
            to_broker_instance=DIALOG.bytes,
        ),
        shed=3,
    )
    write(directory / "date=2026-03-01" / "hour=12" / "shop-1-b.parquet", visit(31, outcome="sent"), instance="shop")
    (directory / "date=2026-03-01" / "broken.parquet").write_bytes(b"PAR1")
    return directory


def test_newest_visits_are_one_line_each(tmp_path: Path) -> None:
    done = run("flows", "tail", journal(tmp_path), "-n", "3")

    lines = done.stdout.splitlines()
    assert 0 == done.exit_code
    assert ["12:00:29.001000", "12:00:30.250000", "12:00:31.001000"] == [line.split()[1] for line in lines]
    assert (
        "2026-03-01 12:00:30.250000  gateway  dropped (no route, 9798)  message  0a4b1c5e-6d0f-4d5a-9a51-0d6f3c1b2e77"
        "  0.0  //shop -> //bank  200 B  hop 0  250.000 ms  from shop  route ToBank  to tcp://bank:4022"
    ) == lines[1]
    assert "broken.parquet: damaged: " in done.stderr


def test_visits_of_a_dialog_or_with_an_outcome_are_found(tmp_path: Path) -> None:
    directory = journal(tmp_path)

    by_dialog = run("flows", "tail", directory, "--conversation", DIALOG, "-o", "json")
    by_outcome = run("flows", "tail", directory, "--outcome", "sent", "--outcome", "dropped", "-o", "json")

    (told,) = map(json.loads, by_dialog.stdout.splitlines())
    assert (str(DIALOG), str(UUID(int=0)), "2026-03-01T12:00:30+00:00", None) == (
        told["conversation_id"],
        told["message_id"],
        told["entered_at"],
        told["from_broker_instance"],
    )
    assert ["dropped", "sent"] == [json.loads(line)["outcome"] for line in by_outcome.stdout.splitlines()]


def test_what_a_terminal_would_obey_is_written_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", visit(from_service="\x1b[2J", took=None))

    assert "\\x1b[2J -> //bank" in run("flows", "tail", tmp_path).stdout


def test_new_files_are_shown_as_they_appear(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", visit(0))
    command = [sys.executable, "-u", "-m", "broker", "flows", "tail", str(tmp_path), "--follow", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stdout is not None
            first = json.loads(tail.stdout.readline())
            write(tmp_path / ".b.parquet", visit(1, sequence_number=7))
            (tmp_path / ".b.parquet").rename(tmp_path / "b.parquet")
            second = json.loads(tail.stdout.readline())
            tail.send_signal(2)
            _, complaints = tail.communicate(timeout=SECONDS)
        finally:
            tail.kill()

    assert (0, 7) == (first["sequence_number"], second["sequence_number"])
    assert (0, "") == (tail.returncode, complaints)


def test_statistics_are_told_as_tables(tmp_path: Path) -> None:
    done = run("flows", "stats", journal(tmp_path))

    text = " ".join(done.stdout.replace("│", " ").split())
    assert 0 == done.exit_code
    assert "files: 1 damaged, 2 good" in text
    assert "read: 32 rows, " in text
    assert "2 of version 1" in text
    assert "from 2026-03-01T12:00:00+00:00 to 2026-03-01T12:00:31.001000+00:00" in text
    assert "shed: 3 records were lost for want of room" in text
    assert "forwarded 30" in text
    assert "dropped no route 1" in text
    assert "damaged: " in text


def test_statistics_as_json_have_every_figure(tmp_path: Path) -> None:
    told = json.loads(run("flows", "stats", journal(tmp_path), "-o", "json").stdout)

    assert ({"good": 2, "damaged": 1}, {"1": 2}, 32, 3, [1.0], 0) == (
        told["files"],
        told["versions"],
        told["rows"],
        told["shed"],
        told["samples"],
        told["untimed_files"],
    )
    assert ["gateway", "shop"] == [one["instance"] for one in told["instances"]]
    assert {"outcome": "dropped", "reason": "no route", "rows": 1} in told["outcomes"]
    (broken,) = told["troubled"]
    assert ("damaged", True) == (broken["fitness"], broken["path"].endswith("broken.parquet"))


def test_many_troubled_files_are_counted_when_they_are_not_named(tmp_path: Path) -> None:
    for number in range(23):
        (tmp_path / f"{number}.parquet").write_bytes(b"")

    done = run("flows", "stats", tmp_path)

    assert 20 == done.stdout.count("it is empty")
    assert "and 3 more: -o json names all" in done.stdout
    assert "read: 0 rows, 0 bytes, no files" in done.stdout


def test_newest_visits_of_files_that_cannot_be_read_are_no_success(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")

    done = run("flows", "tail", tmp_path)

    assert (1, 2) == (done.exit_code, done.stderr.count("not read: "))
    assert "nothing could be read" in done.stderr


@pytest.mark.parametrize("output", ["table", "json"])
def test_statistics_of_files_that_cannot_be_read_are_no_success_and_name_them(tmp_path: Path, output: str) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")

    done = run("flows", "stats", tmp_path, "-o", output)

    assert 1 == done.exit_code
    assert "nothing could be read" in done.stderr
    assert all(name in done.stdout for name in ("a.parquet", "b.parquet", "foreign", "damaged"))


def test_a_journal_without_files_or_without_visits_has_no_newest_and_no_outcomes(tmp_path: Path) -> None:
    assert (0, "") == (run("flows", "tail", tmp_path).exit_code, run("flows", "tail", tmp_path).stdout)
    write(tmp_path / "gateway-1-a.parquet")

    assert 0 == run("flows", "tail", tmp_path).exit_code
    assert 0 == run("flows", "stats", tmp_path).exit_code
    assert "outcome" in run("flows", "stats", tmp_path).stdout


@pytest.mark.parametrize("command", ["tail", "stats"])
def test_directory_that_is_not_there_is_not_found(tmp_path: Path, command: str) -> None:
    done = run("flows", command, tmp_path / "gone")

    assert NOT_FOUND == done.exit_code
    assert "there is no directory" in done.stderr


def test_synthetic_history_is_made_by_the_same_group() -> None:
    assert "Make a synthetic history" in run("flows", "--help").stdout


def test_numpy_is_kept_away_for_as_long_as_asked() -> None:
    program = (
        "from broker.cli.flows import without_numpy\n"
        "with without_numpy():\n"
        "    import pyarrow\n"
        "    try: import numpy\n"
        "    except ImportError: print('not here')\n"
        "import numpy; print(numpy.__name__)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "not here\nnumpy\n" == done.stdout


def test_numpy_that_may_be_needed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow has begun with it, or may be asked for what needs it."""
    monkeypatch.setitem(sys.modules, "numpy", sys)

    with without_numpy():
        assert sys is sys.modules["numpy"]
