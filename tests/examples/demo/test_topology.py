"""The demo: what a topology writes before it starts anything, and who leads where in the instances that it has."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.catalog.check import CheckReport, check_files
from examples.demo import topology
from examples.demo.cast import GATEWAYS, HOMES, ORDERS, TARGETS, Home, demo_topology
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


# --- the cast ---


def test_every_configuration_with_its_scripts_is_good(tmp_path: Path) -> None:
    net = demo_topology(tmp_path)

    report = check_files([daemon.config for daemon in net.daemons.values()], environ={})

    assert CheckReport() == replace(report, warnings=[], skipped=[])
    assert {("endpoint.encryption", True)} == {  # on loopback it may be plain text, which is told all the same
        (warning.key, "connections are not encrypted" in warning.problem) for warning in report.warnings
    }


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.database)
def test_a_database_has_a_route_to_each_far_one_through_each_gateway(tmp_path: Path, home: Home) -> None:
    net = demo_topology(tmp_path)

    for name in home.hosts:
        script = (net.daemons[name].directory / f"{home.database}.sql").read_text(encoding="utf-8")
        far = TARGETS if home is ORDERS else (ORDERS,)
        ways = {
            (one.database, gateway)
            for one in far
            for gateway in GATEWAYS
            for line in script.splitlines()
            if f"[{one.database}-{gateway}]" in line and f" ADDRESS = '{net.daemons[gateway].address}'" in line
        }
        assert len(far) * len(GATEWAYS) == len(ways)
