"""What befalls a hurried operator beyond a wrong configuration: each is one clear message and the documented code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

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
