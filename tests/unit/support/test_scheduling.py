"""A worker that dies costs the test it was at, and the others are run to their end."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(40))
def test_of(number: int) -> None:
    Path(f"seen-{number}").touch()
    if number == 20 and not Path("died").exists():
        Path("died").touch()
        os._exit(1)
"""
HOOK = """
from tests.support.scheduling import Scheduling

def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)
"""


def test_a_worker_that_dies_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(Path.cwd())!r})\n{HOOK}")

    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:randomly"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode == 1
    assert "crashed while running 'test_it.py::test_of[20]'" in run.stdout
    assert len(list(tmp_path.glob("seen-*"))) == 40
