"""The demo's ledger over all of its databases; the play itself is in tests/chaos."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.store.sqlite.database import open_store
from examples.demo.cast import HOMES, ORDERS, Home, demo_topology
from examples.demo.story import SERVICES, is_settled, ledger_faults
from examples.demo.topology import Topology
from examples.demo.workload import Plan, connection


@pytest.fixture
def net(tmp_path: Path) -> Topology:
    """The demo's instances, with the database files that they would make."""
    net = demo_topology(tmp_path)
    for home in HOMES:
        open_store(home.path(net)).close()
    return net


def write(net: Topology, home: Home, statement: str) -> None:
    db = sqlite3.connect(home.path(net))
    with db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.database)
def test_a_conversation_that_is_open_anywhere_keeps_it_from_being_settled(net: Topology, home: Home) -> None:
    write(
        net,
        home,
        "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator, conversation_group_id,"
        " state, service_name, far_service, contract, lifetime, create_date)"
        " VALUES (randomblob(16), randomblob(16), 1, randomblob(16), 'CO', 'a', 'b', 'DEFAULT', 9e9, 0)",
    )

    assert not is_settled(net)


def test_the_ledger_tells_who_missed_what(net: Topology) -> None:
    """The load of the first service is shared: each of its databases has seen what the other has not."""
    plan = Plan(ORDERS.service, SERVICES, dialogs=2, messages=2)
    east, west = (home for home in HOMES if home.service == SERVICES[0])
    noted = {ORDERS: (1, 2, 3, 4), east: (1,), west: (2,)}
    for home, conversations in noted.items():
        with connection(home.path(net)):
            pass
        rows = ", ".join(f"({conversation}, {number})" for number in range(2) for conversation in conversations)
        write(
            net,
            home,
            f"INSERT INTO noted (conversation, number) SELECT CAST(column1 AS BLOB), column2 FROM (VALUES {rows})",
        )

    assert [f"{SERVICES[1]}: 0 dialogs seen, 2 expected"] == ledger_faults(net, plan)
