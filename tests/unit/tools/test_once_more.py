"""Tests that failed among all the others are run once more, a few of them, and told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.once_more import TESTS_MAX, failed_tests

FLAKY = """
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("as the tests here")

def test_of_the_second_time() -> None:
    seen = Path("seen")
    is_second = seen.exists()
    seen.touch()
    assert is_second
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, far from the configuration of this one."""
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return tmp_path


def once_more(project: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """After a first run of these tests."""
    (project / "test_it.py").write_text(tests)
    first = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"]
    assert subprocess.run(first, cwd=project, capture_output=True, check=False).returncode == 1
    command = [sys.executable, "-m", "tools.once_more"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def test_one_that_passes_alone_is_told_and_costs_nothing(project: Path) -> None:
    again = once_more(project, FLAKY + "\ndef test_that_passed() -> None: pass\n")

    assert again.returncode == 0
    assert "FLAKY, to be mended: test_it.py::test_of_the_second_time" in again.stdout
    assert "test_that_passed" not in again.stdout


def test_one_that_fails_twice_fails_the_run(project: Path) -> None:
    again = once_more(project, "def test_of_nothing() -> None: assert not 1")

    assert again.returncode == 1
    assert "failed twice: test_it.py::test_of_nothing" in again.stdout


def test_many_are_not_tried_again(project: Path) -> None:
    again = once_more(project, "\n".join(f"def test_{n}() -> None: assert not 1" for n in range(TESTS_MAX + 1)))

    assert again.returncode == 1
    assert f"{TESTS_MAX + 1} tests failed: at most {TESTS_MAX} are run once more" in again.stderr


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ("tests/a.py::test_b@tests/a.py", "tests/a.py::test_b"),
        ("tests/a.py::test_b[c@d]@tests/a.py", "tests/a.py::test_b[c@d]"),
        ("tests/a.py::test_b[c@d]", "tests/a.py::test_b[c@d]"),
    ],
)
def test_the_group_of_a_test_is_no_part_of_its_name(tmp_path: Path, kept: str, named: str) -> None:
    cache = tmp_path / "v" / "cache" / "lastfailed"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({kept: True}))

    assert failed_tests(tmp_path) == [named]
