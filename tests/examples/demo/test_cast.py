"""The demo's instances as written: who forwards, who is a pair, and which routes lead where."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.catalog.check import CheckReport, check_files
from examples.demo.cast import GATEWAYS, HOMES, ORDERS, TARGETS, Home, demo_topology


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
