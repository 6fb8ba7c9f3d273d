"""What befalls a hurried operator beyond a wrong configuration: each is one clear message and the documented code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.store.sqlite.file_identity import RECORD
from examples.demo.topology import Topology
from tests.support.hurried import SERVE_SECONDS, Place, command, place

USAGE, EX_TEMPFAIL, EX_CONFIG = 2, 75, 78
Disk = Callable[..., Path]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as found:
        yield found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mounts a file system of its own."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        where = tmp_path / "disk"
        where.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", where], check=False, capture_output=True)
        if done.returncode:
            pytest.skip("only root may mount a file system")
        mounted.append(where)
        return where

    yield mount
    for where in mounted:
        subprocess.run(["umount", "-l", where], check=True)


def said(words: str) -> str:
    """What a command said, without the log; never a traceback."""
    assert "Traceback" not in words
    return "\n".join(line for line in words.splitlines() if not line.startswith("{"))


# --- the command line -----------------------------------------------------------------------------------------


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
        (["serve", "-c", "/dev/zero"], EX_CONFIG, "/dev/zero: is not a plain file; write the configuration to a file"),
        (["serve", "-c", "pipe"], EX_CONFIG, "pipe: is not a plain file; write the configuration to a file"),
        (["serve", "-c", "huge.toml"], EX_CONFIG, "huge.toml: is larger than 4 MiB; name a configuration file"),
        (["serve", "-c", "caf\udce9.toml"], EX_CONFIG, "caf\\udce9.toml: cannot be read: No such file or directory"),
        (["serve", "-c", "utf16.toml"], EX_CONFIG, "utf16.toml:1:1: TOML: the file is UTF-16; save it as UTF-8"),
        (["serve", "-c", "empty.toml"], EX_CONFIG, "empty.toml is empty, and nothing else says what to run: write"),
        (["check", "-c", "empty.toml"], 1, "empty.toml is empty, and nothing else says what to run: write"),
        (["explain", "-c", "empty.toml", "--offline", "--to", "a"], USAGE, "empty.toml is empty, and nothing else"),
        (["serve", "--config-file", "x"], USAGE, "No such option"),
        (["serve", "--set", "endpoint.max_hops"], USAGE, "write KEY=VALUE, like endpoint.max_hops=4"),
        (["serve", "--set", "endpoint.max_hops=" + "9" * 5000], EX_CONFIG, "endpoint.max_hops (flag): "),
        (["serve", "--set", "endpoint.listen=" + "[" * 100_000], EX_CONFIG, "endpoint.listen (flag): "),
    ],
    ids=lambda value: value[2][:24].encode("ascii", "replace").decode() if isinstance(value, list) else "",
)
def test_wrong_file_or_option_is_one_message(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "utf16.toml").write_text("[instance]\n", encoding="utf-16")
    (tmp_path / "empty.toml").touch()
    with (tmp_path / "huge.toml").open("wb") as file:
        file.truncate(1 << 30)

    found, words = command(*arguments, directory=tmp_path)

    assert (code, True) == (found, message in said(words)), words[-2000:]


def test_name_that_is_no_text_is_told_on_both_outputs(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.toml").write_text("[endpoint]\nmax_hops = 0\n")

    for output in ("table", "json", "github"):
        code, words = command("check", "-c", "caf\udce9.toml", "-o", output, "--offline", directory=tmp_path)

        assert (1, True) == (code, "endpoint.max_hops: 0 is out of range" in said(words))


# --- the disk -------------------------------------------------------------------------------------------------


def test_full_disk_is_told(one: Place, disk: Disk) -> None:
    where = disk("size=64k")
    (where / "ballast").write_bytes(bytes(60 * 1024))
    one.replace('"state"', f'"{where}"')
    one.write()

    code, words = one.serve()

    assert (EX_TEMPFAIL, True) == (code, "disk is full: make room" in said(words) or "No space left" in said(words))


def test_disk_that_may_only_be_read_is_told(one: Place, disk: Disk) -> None:
    where = disk("size=1m,ro")
    one.replace('"state"', f'"{where}/state"')
    one.write()

    code, words = one.serve()
    checked, report = one.check()

    assert (EX_TEMPFAIL, 1) == (code, checked)
    assert "Read-only file system" in said(words)
    assert "cannot be written: Read-only file system" in report


def test_disk_that_is_not_mounted_is_told_and_nothing_is_begun_beside_it(one: Place) -> None:
    """In a mount namespace of its own, whose fstab names the mount point."""
    where = one.directory / "data"
    where.mkdir()
    one.replace('"state"', f'"{where}/state"')
    one.write()
    fstab = one.file("fstab", f"/dev/sdz1 {where} ext4 defaults 0 2\n")
    Path("/etc/fstab").exists() or pytest.skip("there is no /etc/fstab to put another one over")
    serve = f"exec {sys.executable} -m broker serve -c {one.config}"
    script = f"mount --bind {fstab} /etc/fstab && {serve}"

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=SERVE_SECONDS
    )

    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("only root may mount a file system")
    assert EX_TEMPFAIL == done.returncode
    assert f'"{where}" is not mounted, as /etc/fstab says it should be' in said(done.stderr)
    assert [] == list(where.iterdir())


# --- the clock, and a second instance --------------------------------------------------------------------------


def test_clock_that_is_behind_is_told_and_the_instance_starts(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        daemon = net.add("a", forwarding=True)
        net.start()
        daemon.stop()
        ahead = time.time() + 86_400
        os.utime(daemon.directory / RECORD, (ahead, ahead))

        code, report = command(
            "check", "-c", str(daemon.config), "--offline", environ=daemon.environ, directory=tmp_path
        )
        daemon.start()
        log = daemon.log.read_text()

    assert (0, True) == (code, "which is later; set the clock of this machine" in report)
    assert '"clock is behind"' in log


def test_second_instance_of_one_state_directory_is_told_and_the_first_goes_on(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        daemon = net.add("a", forwarding=True)
        net.start()
        other = ["--set", 'endpoint.listen=["127.0.0.1:0"]', "--set", "observe.listen="]

        code, words = command("serve", "-c", str(daemon.config), *other, environ=daemon.environ, directory=tmp_path)

        assert (EX_TEMPFAIL, True) == (code, "another daemon has it open" in said(words))
        assert daemon.status()["ready"]
