"""The file that spark-submit runs."""

import subprocess
import sys
from pathlib import Path

from broker.cli import submit


def test_it_is_broker_pipeline_as_a_file(tmp_path: Path) -> None:
    """Its directory, whose modules have common names, is not in the path."""
    command = [sys.executable, submit.__file__, "paths", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout.startswith("Usage: broker pipeline paths")
