"""The file that spark-submit runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from broker.cli import submit


def test_it_is_broker_pipeline_as_a_file(tmp_path: Path) -> None:
    """Run as spark-submit runs it: its directory, whose modules have common names, is not in the path."""
    done = subprocess.run(
        [sys.executable, submit.__file__, "paths", "--help"], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    assert done.stdout.startswith("Usage: broker pipeline paths")


def test_an_import_does_nothing() -> None:
    assert callable(submit.main)
