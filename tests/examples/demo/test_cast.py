"""The demo's instances as written: who forwards, who is a pair, and which routes lead where."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from broker.catalog.check import CheckReport, check_files
from broker.config.load import load_settings
from examples.demo.cast import BILLING, GATEWAYS, HOMES, ORDERS, SHIPPING, TARGETS, Home, demo_topology
from examples.demo.topology import Daemon, Topology


def test_two_gateways_an_initiator_two_that_share_a_service_and_a_mirrored_pair(tmp_path: Path) -> None:
    net = demo_topology(tmp_path)

    settings = {name: load_settings(daemon.config, environ={}) for name, daemon in net.daemons.items()}

    endpoints = [name for home in HOMES for name in home.hosts]
    assert dict.fromkeys(GATEWAYS, True) | dict.fromkeys(endpoints, False) == {
        name: one.endpoint.message_forwarding for name, one in settings.items()
    }
    assert 1 == len({home.service for home in BILLING}) < len(BILLING)
    assert [SHIPPING] == [home for home in HOMES if home.is_mirrored]
    first, second = (settings[name].databases[SHIPPING.database] for name in SHIPPING.hosts)
    assert SHIPPING.path(net) == first.path == second.path
    assert first.broker_instance == second.broker_instance is not None
    assert ("lock", "lock") == (first.mirroring, second.mirroring)


def test_every_configuration_with_its_scripts_is_good(tmp_path: Path) -> None:
    net = demo_topology(tmp_path)

    report = check_files([daemon.config for daemon in net.daemons.values()], environ={}, offline=True)

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


def test_the_route_to_the_pair_alone_names_two_addresses(tmp_path: Path) -> None:
    net = demo_topology(tmp_path)
    first, second = SHIPPING.daemons(net)

    lines = (net.daemons[GATEWAYS[0]].directory / "msdb.sql").read_text(encoding="utf-8").splitlines()

    [mirrored] = [line for line in lines if "MIRROR_ADDRESS" in line]
    assert f"ADDRESS = '{first.address}', MIRROR_ADDRESS = '{second.address}'" in mirrored
    assert f"'{SHIPPING.service}'" in mirrored


class Told:
    """A daemon that tells which databases it serves, or does not run."""

    def __init__(self, *databases: str, is_running: bool = True) -> None:
        self.is_running = is_running
        self._databases = databases

    def status(self) -> dict[str, object]:
        assert self.is_running
        return {"databases": dict.fromkeys(self._databases)}


def test_the_principal_is_whichever_serves() -> None:
    mirror, principal, dead = Told(), Told("shipping"), Told("shipping", is_running=False)
    cases = [((mirror, principal), principal), ((principal, mirror), principal), ((dead, principal), principal)]

    for (first, second), expected in [*cases, ((mirror, mirror), mirror)]:
        net = cast("Topology", SimpleNamespace(daemons={"shipping-1": first, "shipping-2": second}))
        assert cast("Daemon", expected) is SHIPPING.principal(net)


def test_instances_keep_a_journal_where_one_is_asked_for_and_have_a_page(tmp_path: Path) -> None:
    without, net = demo_topology(tmp_path / "a"), demo_topology(tmp_path / "b", journal=tmp_path / "journal")

    assert len({daemon.page for daemon in net.daemons.values()}) == len(net.daemons)
    for name, daemon in net.daemons.items():
        written = tomllib.loads(daemon.config.read_text(encoding="utf-8"))
        assert {"directory": str(tmp_path / "journal"), "sample": 1.0}.items() <= written["journal"].items()
        admin = written["admin"]
        assert (daemon.page, "viewer") == (f"http://{admin['listen']}/", admin["loopback_role"])
        assert "journal" not in tomllib.loads(without.daemons[name].config.read_text(encoding="utf-8"))
