"""The demo's report: what the pipeline is asked for, and what its ledger is held against."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.errors import PipelineUnavailableError
from examples.demo.journal import ReportLeftOutError, Total, make_report, total_faults
from examples.demo.ledger import Account

TOTAL = Total(
    sent=7,
    delivered=6,
    acknowledged=1,
    under_way=0,
    missing=0,
    doubled=0,
    untold=0,
    invented=0,
    resent=2,
    dropped=1,
    lost=3,
    adds_up=True,
)
ACCOUNTS = {"a": Account(sent=4, arrived=3), "b": Account(sent=3, arrived=4)}


def write_reconcile(directory: Path) -> None:
    directory.mkdir(parents=True)
    rows = [
        {"conversation_id": b"1" * 16, **asdict(replace(TOTAL, sent=1))},
        {"conversation_id": None, **asdict(TOTAL)},
    ]
    pq.write_table(pa.Table.from_pylist(rows), directory / "part-0.parquet")
    (directory / "_report.json").write_text("{}", encoding="utf-8")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Another program in the pipeline's place; the arguments of the pipeline follow its own."""
    real = subprocess.Popen

    def use(code: str) -> None:
        def popen(command: list[str], **options: Any) -> subprocess.Popen[str]:
            assert ["-m", "broker", "pipeline", "report"] == command[1:5]
            return real([sys.executable, "-c", code, *command[5:]], **options)

        monkeypatch.setattr(subprocess, "Popen", popen)

    return use


def test_the_report_is_left_where_it_was_asked_for(tmp_path: Path, program: Any) -> None:
    write_reconcile(tmp_path / "out" / "reconcile")
    program(
        "import sys, pathlib;"
        "assert sys.argv[1:4:2] == ['--journal', '--out'];"
        "pathlib.Path(sys.argv[4], 'report.html').write_text(sys.argv[2]);"
        "print('paths: 3 rows', file=sys.stderr);"
        "print(f'report: {sys.argv[4]}/report.html, 1.0 s', file=sys.stderr)"
    )
    heard: list[str] = []

    total = make_report(tmp_path / "flows", tmp_path / "out", tmp_path / "report.html", heard.append)

    assert TOTAL == total
    assert ["paths: 3 rows"] == heard
    assert str(tmp_path / "flows") == (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_pipeline_that_cannot_run_here_leaves_the_report_out(tmp_path: Path, program: Any) -> None:
    said = str(PipelineUnavailableError("no Java", "install one"))
    program(f"import sys; sys.exit({said!r})")

    with pytest.raises(ReportLeftOutError, match="no Java; install one"):
        make_report(tmp_path, tmp_path, tmp_path / "report.html", lambda _: None)

    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("total", "faults"),
    [
        (TOTAL, 0),
        (replace(TOTAL, sent=8), 1),
        (replace(TOTAL, delivered=5), 1),
        (replace(TOTAL, adds_up=False), 1),
        (replace(TOTAL, adds_up=None, sent=0, delivered=0, acknowledged=0), 3),
    ],
)
def test_the_journal_has_to_agree_with_the_databases(total: Total, faults: int) -> None:
    assert faults == len(total_faults(total, ACCOUNTS))
