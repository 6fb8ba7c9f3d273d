"""What befalls a hurried operator beyond a wrong configuration: each is one clear message and the documented code."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from broker.store.sqlite.file_identity import RECORD
from examples.demo.topology import Topology
from tests.support.hurried import command, place

USAGE, EX_TEMPFAIL, EX_CONFIG = 2, 75, 78


def said(words: str) -> str:
    """What a command said, without the log; never a traceback."""
    assert "Traceback" not in words
    return "\n".join(line for line in words.splitlines() if not line.startswith("{"))


def test_serve_of_nothing_tells_how_to_begin(tmp_path: Path) -> None:
    code, words = command("serve", directory=tmp_path)

    begin = said(words)
    assert EX_CONFIG == code
    assert begin.startswith("nothing says what to run: name a configuration file with -c FILE or in BROKER_CONFIG")
    (tmp_path / "broker.toml").write_text(begin[begin.index("[instance]") :])
    assert 0 == command("check", "-c", "broker.toml", directory=tmp_path)[0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["serve", "-c", "none.toml"], EX_CONFIG, "none.toml: cannot be read: No such file or directory; name a TOML"),
        (["serve", "-c", "."], EX_CONFIG, ".: is a directory; name the TOML file in it"),
        (["serve", "-c", "pipe"], EX_CONFIG, "pipe: is not a plain file; write the configuration to a file"),
        (["serve", "-c", "huge.toml"], EX_CONFIG, "huge.toml: is larger than 4 MiB; name a configuration file"),
        (["serve", "-c", "caf\udce9.toml"], EX_CONFIG, "caf\\udce9.toml: cannot be read: No such file or directory"),
        (["serve", "-c", "empty.toml"], EX_CONFIG, "empty.toml is empty, and nothing else says what to run: write"),
        (["serve", "--config-file", "x"], USAGE, "No such option"),
        (["serve", "--set", "endpoint.max_hops=" + "9" * 5000], EX_CONFIG, "endpoint.max_hops (flag): "),
    ],
    ids=["none", "directory", "pipe", "huge", "name", "empty", "option", "number"],
)
def test_wrong_file_or_option_is_one_message(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.toml").touch()
    with (tmp_path / "huge.toml").open("wb") as file:
        file.truncate(1 << 30)

    found, words = command(*arguments, directory=tmp_path)

    assert (code, True) == (found, message in said(words)), words[-2000:]


@pytest.mark.parametrize("options", ["size=64k", "size=1m,ro"], ids=["full", "read-only"])
def test_disk_that_takes_nothing_is_told(tmp_path: Path, options: str) -> None:
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(where)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        if "ro" not in options:
            (where / "ballast").write_bytes(bytes(60 * 1024))
        with place(tmp_path) as one:
            one.replace('"state"', f'"{where}"')
            one.write()
            code, words = one.serve()
    finally:
        subprocess.run(["umount", "-l", where], check=True)

    assert EX_TEMPFAIL == code
    assert any(
        told in said(words) for told in ("disk is full: free some space", "No space left", "Read-only file system")
    )


def test_clock_that_is_behind_is_told_and_the_instance_starts(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        daemon = net.add("a", forwarding=True)
        net.start()
        daemon.stop()
        ahead = time.time() + 86_400
        os.utime(daemon.directory / RECORD, (ahead, ahead))

        checking = ["check", "-c", str(daemon.config), "--offline"]
        code, report = command(*checking, environ=daemon.environ, directory=tmp_path)
        daemon.start()
        log = daemon.log.read_text()

    assert (0, True) == (code, "which is later; set the clock of this machine" in report)
    assert '"clock is behind"' in log
