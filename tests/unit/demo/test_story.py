"""The demo's five instances as written, and its ledger; the play itself is in tests/chaos."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.control.check import Report, check_files
from broker.control.load import load_settings
from broker.demo.story import GATEWAYS, INITIATOR, TARGETS, demo_topology, is_settled, ledger_faults
from broker.demo.topology import Topology
from broker.demo.workload import Plan, connection
from broker.store.database import open_store

ENDPOINTS = ("orders", *TARGETS)


@pytest.fixture
def net(tmp_path: Path) -> Topology:
    """The demo's instances, with the database files that they would make."""
    net = demo_topology(tmp_path)
    for name in ENDPOINTS:
        open_store(net.daemons[name].directory / f"{name}.db").close()
    return net


def write(net: Topology, name: str, statement: str) -> None:
    db = sqlite3.connect(net.daemons[name].directory / f"{name}.db")
    with db:
        db.execute(statement)
    db.close()


def test_five_instances_of_which_two_forward(tmp_path: Path) -> None:
    net = demo_topology(tmp_path)

    forwards = {
        name: load_settings(daemon.config, environ={}).endpoint.message_forwarding
        for name, daemon in net.daemons.items()
    }

    assert dict.fromkeys(GATEWAYS, True) | dict.fromkeys(ENDPOINTS, False) == forwards


def test_every_configuration_with_its_scripts_is_good(tmp_path: Path) -> None:
    net = demo_topology(tmp_path)

    report = check_files([daemon.config for daemon in net.daemons.values()], environ={}, offline=True)

    assert Report() == report


@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_endpoint_has_a_route_to_each_far_service_through_each_gateway(tmp_path: Path, name: str) -> None:
    net = demo_topology(tmp_path)

    script = (net.daemons[name].directory / f"{name}.sql").read_text(encoding="utf-8")

    far = TARGETS.values() if name == "orders" else [INITIATOR]
    ways = {
        (service, net.daemons[gateway].address)
        for service in far
        for gateway in GATEWAYS
        for line in script.splitlines()
        if f"SERVICE_NAME = '{service}'" in line and f"ADDRESS = '{net.daemons[gateway].address}'" in line
    }
    assert len(far) * len(GATEWAYS) == len(ways)


def test_a_network_in_which_nothing_is_open_or_waits_is_settled(net: Topology) -> None:
    assert is_settled(net)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_message_that_waits_anywhere_keeps_it_from_being_settled(net: Topology, name: str) -> None:
    write(
        net,
        name,
        "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
        " state, service_name, far_service, contract, lifetime, create_date)"
        " VALUES (randomblob(16), randomblob(16), 1, randomblob(16), 'CO', 'a', 'b', 'DEFAULT', 9e9, 0)",
    )

    assert not is_settled(net)


def test_the_ledger_tells_who_missed_what(net: Topology) -> None:
    plan = Plan(INITIATOR, tuple(TARGETS.values()), dialogs=1, messages=2)
    for name, rows in {"orders": "(1, 0), (2, 0), (1, 1), (2, 1)", "billing": "(1, 0), (1, 1)"}.items():
        with connection(net.daemons[name].directory / f"{name}.db"):
            pass
        write(
            net,
            name,
            f"INSERT INTO noted (conversation, number) SELECT CAST(column1 AS BLOB), column2 FROM (VALUES {rows})",
        )

    assert ["shipping: 0 dialogs seen, 1 expected"] == ledger_faults(net, plan)
