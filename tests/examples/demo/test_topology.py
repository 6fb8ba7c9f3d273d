"""What a topology writes before it starts anything."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from examples.demo import topology
from examples.demo.topology import TimedOutError, Topology


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "Gro\N{LATIN SMALL LETTER SHARP S}", "\N{SLICE OF PIZZA}", "a = b # c"]
)
def test_any_text_survives_the_way_through_toml(tmp_path: Path, name: str) -> None:
    daemon = Topology(tmp_path).add("one", settings={"instance": {"name": name}})

    assert name == tomllib.loads(daemon.config.read_text(encoding="utf-8"))["instance"]["name"]


class Slow(subprocess.Popen[bytes]):
    """Says something when it is looked at for the first time, and never serves."""

    def __init__(self, _arguments: Sequence[str], log: Path, _environ: Mapping[str, str]) -> None:
        self._log = log
        super().__init__([sys.executable, "-c", "import signal; signal.pause()"])

    def poll(self) -> int | None:
        self._log.write_text("the disk is slow")
        return super().poll()


def test_an_instance_that_is_not_ready_in_time_is_told_with_what_it_said_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "READY_SECONDS", 0.0)
    with Topology(tmp_path) as net:
        daemon = net.add("one")
        daemon.starter = Slow

        with pytest.raises(TimedOutError, match=r"^one ready: not within 0 s: the disk is slow$"):
            daemon.start()
