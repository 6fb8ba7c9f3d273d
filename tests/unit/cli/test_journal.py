"""`broker journal tail`, on journals good and bad."""

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from broker.cli import journal as command
from broker.cli.exit_codes import ExitCode
from broker.protocol.layout import show_guid
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
            route="To\x1bBank",
            adjacent_out="tcp://bank:4022",
            to_broker_instance=DIALOG.bytes,
        ),
        shed=3,
    )
    write(
        directory / "date=2026-03-01" / "hour=12" / "shop-1-b.parquet",
        visit(31, took=0.0, outcome="sent"),
        instance="shop",
    )
    (directory / "date=2026-03-01" / "broken.parquet").write_bytes(b"PAR1")
    return directory


def test_newest_visits_are_one_line_each(tmp_path: Path) -> None:
    done = run("journal", "tail", journal(tmp_path), "-n", "3")

    lines = done.stdout.splitlines()
    assert 0 == done.exit_code
    assert ["12:00:29.001000", "12:00:30.250000", "12:00:31.000000"] == [line.split()[1] for line in lines]
    assert (
        "2026-03-01 12:00:30.250000  gateway  dropped (no route, 9798)  message  0A4B1C5E-6D0F-4D5A-9A51-0D6F3C1B2E77"
        "  0.0  //shop -> //bank  200 B  hop 0  250.000 ms  from shop  route To\\x1bBank  to tcp://bank:4022"
    ) == lines[1]
    assert "hop 0  at once" in lines[2]
    assert "broken.parquet: damaged: " in done.stderr


def test_visits_of_a_dialog_or_with_an_outcome_are_found(tmp_path: Path) -> None:
    directory = journal(tmp_path)

    by_dialog = run("journal", "tail", directory, "--conversation", DIALOG, "-o", "json")
    unknown = run("journal", "tail", directory, "--conversation", UUID(int=1))
    by_outcome = run("journal", "tail", directory, "--outcome", "sent", "--outcome", "dropped", "-o", "json")

    (told,) = map(json.loads, by_dialog.stdout.splitlines())
    assert (show_guid(DIALOG), show_guid(UUID(int=0)), "2026-03-01T12:00:30+00:00", None) == (
        told["conversation_id"],
        told["message_id"],
        told["entered_at"],
        told["from_broker_instance"],
    )
    assert (0, "") == (unknown.exit_code, unknown.stdout)
    assert f"no visit with the conversation_id {UUID(int=1)}: " in unknown.stderr
    assert ["dropped", "sent"] == [json.loads(line)["outcome"] for line in by_outcome.stdout.splitlines()]


def test_new_files_are_shown_as_they_appear(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", visit(0))
    command = [sys.executable, "-u", "-m", "broker", "journal", "tail", str(tmp_path), "--follow", "-o", "json"]
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


def test_files_that_cannot_be_read_or_are_not_there(tmp_path: Path) -> None:
    (tmp_path / ".gateway-000001-00000001.parquet").write_bytes(b"PAR1")
    nothing = run("journal", "tail", tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
    unread = run("journal", "tail", tmp_path)
    gone = run("flows", "tail", tmp_path / "gone")

    assert (0, "", True) == (nothing.exit_code, nothing.stdout, "after journal.file_age" in nothing.stderr)
    assert (1, 2, True) == (
        unread.exit_code,
        unread.stderr.count("not read: "),
        "nothing could be read" in unread.stderr,
    )
    assert (ExitCode.NOT_FOUND, True) == (gone.exit_code, "there is no directory" in gone.stderr)


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "pyarrow" else object())

    result = run("journal", "tail", tmp_path)

    install = "pip install 'service-broker[journal]' (in a checkout, pip install '.[journal]')"
    assert (ExitCode.ERROR, f"a journal needs pyarrow: {install}\n") == (result.exit_code, result.stderr)
